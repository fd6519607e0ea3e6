"""Keras's ``convert_to_numpy`` of a variable warns under NumPy 2.4.

On torch, so does an optimizer's ``get_config``, which converts its learning rate.

Backends: tensorflow, torch
Shows with: numpy>=2.4
"""

import sys
import warnings

import keras

variable = keras.Variable([1.0])
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    keras.ops.convert_to_numpy(variable)
if not found:
    sys.exit("gone: no warning")
print(f"shown: {found[0].category.__name__}: {found[0].message}")
