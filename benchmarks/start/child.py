"""One fit in a process of its own: prints when its first batch began and ended.

    python child.py BEGUN WAY LAYERS MEGABYTES DIRECTORY EPOCHS

`BEGUN` is when the process was started, by the system's monotonic clock, in seconds.
`WAY` is `plain` (`model.fit`) or `ours` (`resilient.fit`, which resumes if there is a
checkpoint in the directory).
"""

import contextlib
import json
import sys
import time
import warnings
from typing import Any

with contextlib.suppress(ImportError):
    import torch  # noqa: F401  # before TensorFlow, or the process crashes

import keras
import numpy as np

_BATCH, _STEPS, _FEATURES = 32, 20, 16
_CHAIN = 100
_MOMENTS = 3  # a weight and what Adam keeps of it
_BYTES = 4

_seen: dict[str, float] = {}


class First(keras.callbacks.Callback):
    """Notes when the first batch began and ended, and of which epoch it was."""

    def state_dict(self) -> dict:
        """Nothing, not even what its methods use: each process notes its own."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Nothing was saved."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch begins."""
        _seen.setdefault("epoch", epoch)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """The batch begins."""
        _seen.setdefault("begin", time.monotonic())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """The batch ended; JAX has waited for it, since this hook is there."""
        _seen.setdefault("end", time.monotonic())


def make_model(layers: int, megabytes: float) -> keras.Model:
    """Chains of layers, whose state is as large; one up to 100 layers.

    Keras visits a model's layers by recursion, which Python does not do 1,000 deep.
    """
    weights = megabytes * 1e6 / _BYTES / _MOMENTS
    width = max(1, round((weights / layers) ** 0.5))
    inputs, ends = keras.Input((_FEATURES,)), []
    for begin in range(0, layers, _CHAIN):
        outputs = inputs
        for _ in range(min(_CHAIN, layers - begin)):
            outputs = keras.layers.Dense(width, activation="relu")(outputs)
        ends.append(outputs)
    outputs = keras.layers.add(ends) if len(ends) > 1 else ends[0]
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    return model


def main() -> None:
    """Fit, and print."""
    begun, way = float(sys.argv[1]), sys.argv[2]
    if way == "ours":
        import resilient
    model = make_model(int(sys.argv[3]), float(sys.argv[4]))
    x = np.random.default_rng(0).standard_normal((_BATCH * _STEPS, _FEATURES))
    given: dict[str, Any] = {"x": x.astype("float32"), "y": x[:, :1].astype("float32")}
    given |= {"batch_size": _BATCH, "verbose": 0, "callbacks": [First()]}
    called = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "ours":
            directory, epochs = sys.argv[5], int(sys.argv[6])
            resilient.fit(model, epochs=epochs, checkpoint_dir=directory, **given)
        else:
            model.fit(epochs=1, **given)
    over = time.monotonic()
    begin, end = _seen["begin"], _seen["end"]
    found = {"to_begin": begin - called, "to_end": end - called, "whole": over - called}
    found |= {"process": end - begun, "epoch": _seen["epoch"]}
    print(json.dumps(found))  # noqa: T201  # for the process that started this one


if __name__ == "__main__":
    main()
