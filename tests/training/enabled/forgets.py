"""A program that remembers what it has begun, and does not call that fit again.

forgets.py FILE
"""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

MEMORY = Path(sys.argv[1])
begun = json.loads(MEMORY.read_text()) if MEMORY.exists() else []


class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if len(begun) == 2 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


while len(begun) < 2:
    begun.append(len(begun))
    MEMORY.write_text(json.dumps(begun))
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    x = np.ones((20, 2), "float32")
    net.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[Die()])
