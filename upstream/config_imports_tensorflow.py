"""To make a model's configuration imports TensorFlow, whatever the backend.

Keras asks whether a value is a ``tf.TensorShape``, and imports TensorFlow for that,
even where none can have made it. It costs seconds and hundreds of megabytes.

Backends: jax, torch
Needs: tensorflow
"""

import sys

import keras

for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
    sys.exit(f"gone: {name} is imported by Keras itself")
keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).get_config()
if "tensorflow" not in sys.modules:
    sys.exit("gone: get_config left TensorFlow alone")
print("shown: get_config imported TensorFlow")
