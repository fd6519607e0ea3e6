"""A Keras variable declared ``int64`` warns at each assignment, on JAX.

Without ``jax_enable_x64`` it holds ``int32`` from the start but claims ``int64``.

Backends: jax
"""

import sys
import warnings

import keras
import numpy as np

variable = keras.Variable(np.zeros(1, "int64"), dtype="int64")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    variable.assign(np.ones(1, "int64"))
if variable.dtype == str(variable.value.dtype) or not found:
    sys.exit(f"gone: {variable.dtype} is {variable.value.dtype}, {len(found)} warnings")
print(f"shown: {found[0].category.__name__}: {found[0].message}")
