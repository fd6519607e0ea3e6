"""One life of a training: prints when it got how far, trains on, and kills itself.

    python child.py BEGUN WAY LAYERS MEGABYTES DIRECTORY [resumes]

`BEGUN` is when the process was started, by the system's monotonic clock, in seconds.
`WAY` is how it is saved, and resumed if there is something in the directory. It is
killed after batch `KILLED` of the first epoch that begins in this process; a life that
resumes gets to that epoch by training the one in which the last life was killed.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

EPOCH, SAVED, KILLED = 40, 10, 25  # batches: of an epoch, between saves, until a kill
_BATCH, _SIDE, _CHANNELS = 16, 16, 32
_MOMENTS = 3  # a weight and what Adam keeps of it
_BYTES = 4
_SETTLE = 1.0  # seconds, for what is saved in the background
_NEVER = 10**6  # epochs


class Life(keras.callbacks.Callback):
    """Notes when the first batch began and ended, and when a new one was trained."""

    def __init__(self, times: dict[str, float], settle: Callable[[], None]) -> None:
        super().__init__()
        self._times, self._settle, self._epoch, self._begun = times, settle, 0, -1

    def state_dict(self) -> dict:
        """Nothing, not even what its methods use: each process notes its own."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Nothing was saved."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch begins, or goes on."""
        self._epoch = epoch
        self._begun = epoch if self._begun < 0 else self._begun

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """The batch begins."""
        self._note("called")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """The batch ended; JAX has waited for it, since this hook is there."""
        self._note("first")
        if "cpu" not in self._times:
            self._times["cpu"] = time.process_time()
        resumed = len(sys.argv) > 6
        if batch == KILLED:
            self._note("next")
        if batch == KILLED - 1 and self._epoch == self._begun + resumed:
            time.sleep(_SETTLE)
            self._settle()
            print(json.dumps(self._times), flush=True)  # noqa: T201
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, name: str) -> None:
        self._times.setdefault(name, time.monotonic())


def make_model(layers: int, megabytes: float) -> keras.Model:
    """Convolutions, and a wide layer that has nearly all of the state."""
    inputs = keras.Input((_SIDE, _SIDE, 3))
    outputs = keras.layers.Conv2D(_CHANNELS, 3, padding="same")(inputs)
    for _ in range(layers):
        new = keras.layers.BatchNormalization()(outputs)
        new = keras.layers.ReLU()(new)
        new = keras.layers.Conv2D(_CHANNELS, 3, padding="same")(new)
        outputs = keras.layers.add([outputs, new])
    outputs = keras.layers.Flatten()(keras.layers.MaxPooling2D(2)(outputs))
    width = round(megabytes * 1e6 / _BYTES / _MOMENTS / outputs.shape[-1])
    outputs = keras.layers.Dense(max(1, width), activation="relu")(outputs)
    outputs = keras.layers.Dense(10)(keras.layers.Dropout(0.2)(outputs))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def keras_callback(way: str, directory: Path) -> keras.callbacks.Callback:
    """What saves, of Keras's own."""
    if way == "BackupAndRestore":
        return keras.callbacks.BackupAndRestore(str(directory), save_freq=SAVED)
    return keras.callbacks.OrbaxCheckpoint(str(directory), save_freq=SAVED)


def main() -> None:
    """Train until killed."""
    begun, way, directory = float(sys.argv[1]), sys.argv[2], Path(sys.argv[5])
    ours = way.startswith("keras-resilient")
    if ours:
        import resilient
    times = {"begun": begun, "imported": time.monotonic()}
    model = make_model(int(sys.argv[3]), float(sys.argv[4]))
    count = _BATCH * EPOCH
    x = np.random.default_rng(0).random((count, _SIDE, _SIDE, 3), np.float32)
    given: dict[str, Any] = {"x": x, "y": np.arange(count) % 10, "epochs": _NEVER}
    given |= {"batch_size": _BATCH, "verbose": 0}
    times["built"] = time.monotonic()
    if ours:
        given["callbacks"] = [Life(times, lambda: None)]
        keep = way == "keras-resilient"
        given |= {"checkpoint_dir": directory, "save_freq": SAVED}
        resilient.fit(model, keep_compiled=keep, **given)
    saves = keras_callback(way, directory)
    settle = getattr(saves, "wait_until_finished", lambda: None)
    given["callbacks"] = [saves, Life(times, settle)]
    if way == "OrbaxCheckpoint" and len(sys.argv) > 6:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(str(directory))
        given["initial_epoch"] = int(model.optimizer.iterations) // EPOCH
    model.fit(**given)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
