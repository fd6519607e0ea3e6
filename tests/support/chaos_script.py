"""A training that harms itself as it is told to, and writes down how it ended.

    python chaos_script.py HOME [FAULTS]

FAULTS is JSON: a list of [kind, step, seconds]. Each strikes once in the life of a run,
so many seconds after the first batch at or beyond that step, wherever training is then.
A hang is found only while it trains: one that comes too late strikes the next attempt.
One sample has no number as its target: in each epoch the run is rolled back.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np

import resilient
from resilient import Rollback, every
from resilient.telemetry.heartbeat import VARIABLE, read
from support.full_disk import no_file_beyond

SIZE, BATCHES, EPOCHS = 4, 40, 3
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


class Faults(keras.callbacks.Callback):
    """Strikes."""

    def __init__(self, faults, home):
        super().__init__()
        self._faults, self._home = faults, home

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        self._first = epoch * BATCHES

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.003)  # or all would be over before anything strikes
        for number, (kind, step, seconds) in enumerate(self._faults):
            done = self._home / f"fault-{number}"
            if self._first + batch >= step and not done.exists():
                done.write_text(kind)
                self._strike(kind, seconds, number)
                return

    def _strike(self, kind, seconds, number):
        if kind == "raise":
            raise RuntimeError(f"fault {number}")
        if kind == "disk":  # no file may become larger than that
            no_file_beyond(2000)
            return

        if kind == "stop":  # in this thread: it cannot end the training meanwhile
            signal.signal(signal.SIGALRM, lambda *_: self._stop(number))
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return

        def later():
            time.sleep(seconds)
            os.kill(os.getpid(), SIGNALS[kind])

        threading.Thread(target=later, daemon=True).start()

    def _stop(self, number):
        beat = read(os.environ[VARIABLE])
        if beat is not None and beat.phase == "ended":
            (self._home / f"fault-{number}").unlink()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)


def model():
    keras.utils.set_random_seed(11)
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )
    net.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return net


def main(home, faults):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(SIZE * BATCHES, 6)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    y[120] = np.nan
    net = model()
    history = resilient.fit(
        net,
        x,
        y,
        epochs=EPOCHS,
        batch_size=SIZE,
        validation_data=(x[:20], y[:20]),
        verbose=0,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0),
            keras.callbacks.CSVLogger(home / "log.csv"),
            Faults(faults, home),
        ],
        checkpoint_dir=home / "checkpoints",
        save_freq=every(steps=4) | every(epochs=1),
        on_nan=Rollback(steps=3, skip=6, limit=2 * EPOCHS),
    )
    groups = {
        "trained": net.trainable_variables,
        "other": net.non_trainable_variables,
        "optimizer": net.optimizer.variables,
        "metrics": net.metrics_variables,
    }
    state = {
        f"{name}-{number}": keras.ops.convert_to_numpy(variable.value)
        for name, group in groups.items()
        for number, variable in enumerate(group)
    }
    state["numpy"] = np.random.get_state()[1]
    np.savez(home / "end.npz", **state)
    (home / "history.json").write_text(json.dumps(history.history))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(exist_ok=True)
    main(place, json.loads(sys.argv[2]) if len(sys.argv) > 2 else [])
