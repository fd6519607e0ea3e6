"""On TensorFlow, Keras's ``fit`` shuffles arrays in the same order every epoch.

This happens after ``keras.utils.set_random_seed``.

Backends: tensorflow
"""

import sys

import keras
import numpy as np


class Notes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(round(logs["loss"] * (batch + 1)))


seen = []
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.compile("sgd", loss=lambda y, zero: keras.ops.mean(y + zero))
x, y = np.zeros((50, 1), "float32"), np.arange(50, dtype="float32")[:, None]
model.fit(x, y, batch_size=1, epochs=3, callbacks=[Notes()], verbose=0)
orders = {tuple(np.diff(seen[start : start + 50])) for start in (0, 50, 100)}
if len(orders) == 3:
    sys.exit("gone: each of three epochs had its own order")
print(f"shown: three epochs had {len(orders)} order")
