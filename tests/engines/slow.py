"""Trains in one process, as slowly as it is told, and prints a digest.

    slow.py DIRECTORY SECONDS

Each of the 120 batches, in two epochs, takes at least so many seconds.
"""

import hashlib
import sys
import time

import keras
import numpy as np

import resilient


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(f"batch {batch}", flush=True)
        time.sleep(float(sys.argv[2]))


resilient.deterministic(seed=7)
x = np.random.default_rng(0).normal(size=(960, 32)).astype("float32")
layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2)]
model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(1)])
model.compile("adam", "mse")
history = resilient.fit(
    model,
    *(x, x[:, :1]),
    batch_size=16,
    epochs=2,
    callbacks=[Slow()],
    verbose=2,
    checkpoint_dir=sys.argv[1],
    save_freq=10,
    preemption=resilient.Preemption(grace_period=20),
)
found = hashlib.sha256(str(history.history).encode())
for variable in (*model.variables, *model.optimizer.variables):
    found.update(np.asarray(keras.ops.convert_to_numpy(variable)).tobytes())
print(f"digest {found.hexdigest()}")
