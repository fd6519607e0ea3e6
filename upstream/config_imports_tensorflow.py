"""Reading a model's configuration imports TensorFlow, whatever the backend.

Keras checks whether a value is a ``tf.TensorShape``, and imports TensorFlow to do so,
although nothing can have made one. It costs seconds and hundreds of megabytes.

Backends: jax, torch
Needs: tensorflow
"""

import sys

import keras

for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
    sys.exit(f"gone: Keras itself imports {name}")
keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).get_config()
if "tensorflow" not in sys.modules:
    sys.exit("gone: get_config did not import TensorFlow")
print("shown: get_config imported TensorFlow")
