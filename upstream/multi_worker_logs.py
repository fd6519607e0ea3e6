"""Keras's ``fit`` fails to log under TensorFlow's ``MultiWorkerMirroredStrategy``.

https://github.com/keras-team/keras/issues/20585: it reduces a step's logs over the
workers with ``axis=0``, as if these scalars had an axis. This only shows once the model
is built without the fault of multi_worker_build.py, as here.

Backends: tensorflow
"""

import json
import os
import socket
import sys

import keras
import numpy as np
import tensorflow as tf

here = ("127.0.0.1", 0)
with socket.create_server(here) as one, socket.create_server(here) as other:
    ports = [each.getsockname()[1] for each in (one, other)]
child = os.fork()
cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
task = {"type": "worker", "index": 1 if child else 0}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})


class Builds(keras.Sequential):
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        super()._maybe_symbolic_build(data_batch=(x, y))


x = y = np.zeros((4, 1), "float32")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Builds([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
try:
    model.fit(x, y, verbose=0)
except Exception as error:
    said = f"shown: {type(error).__name__}: {error}"
else:
    said = "gone: it trained"
if not child:
    os._exit(0)
os.waitpid(child, 0)
if said.startswith("gone"):
    sys.exit(said)
print(said)
