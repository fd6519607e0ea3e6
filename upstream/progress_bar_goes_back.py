"""The progress bar of ``fit`` goes back.

``CallbackList`` passes the end of each batch to a ``ThreadPoolExecutor`` with several
workers, which handle them in any order. Here the first batch's update waits until the
second one's has finished; nothing in Keras prevents that.

Backends: jax, torch
"""

import sys
import threading

import keras
import numpy as np

second, shown = threading.Event(), []
update = keras.utils.Progbar.update


def waiting(self, current, values=None, finalize=None):
    if current == 1 and threading.current_thread() is not threading.main_thread():
        second.wait(2)
    shown.append(current)
    update(self, current, values, finalize)
    if current == 2:
        second.set()


keras.utils.Progbar.update = waiting
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((16, 3), "float32")
model.fit(x, x[:, :1], batch_size=4, verbose=1)
if shown == sorted(shown):
    sys.exit("gone: steps were shown in order")
print(f"shown: steps were shown in the order {shown}")
