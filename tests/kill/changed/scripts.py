"""What a script is here: something that trains in a directory, and may be killed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

import keras
import numpy as np
from support import fitting

import resilient

from .. import capture
from ..points import Killer, Point

Left = dict[str, Any]

# Of two batches an epoch, killed at the end of the fourth: the third was saved.
KILL = "train_batch_end@1:1"
SAVE_FREQ = 3
EPOCHS = 3
CLOCKS = frozenset({"_epoch_start_time", "_batch_start_time"})


def model(**given: Any) -> keras.Model:
    """A model of ``support.fitting``: the seed is set, and steps run as Python."""
    return fitting.model(**given)


def arrays() -> dict[str, Any]:
    x, y = fitting.data(8)
    return {"x": x, "y": y}


def nothing() -> list[keras.callbacks.Callback]:
    return []


@dataclass(frozen=True)
class Fit:
    """A script that calls ``resilient.fit``.

    Attributes:
        net: Makes the compiled model.
        args: Makes the data.
        callbacks: Makes the callbacks, which write to the working directory.
    """

    net: Callable[[], keras.Model] = model
    args: Callable[[], dict[str, Any]] = arrays
    callbacks: Callable[[], list[keras.callbacks.Callback]] = nothing

    def __call__(self, directory: Path, *, kill: bool) -> Left:
        net, callbacks = self.net(), self.callbacks()
        if directory.exists():
            fitting.other_seed()  # what is equal then comes from the checkpoint
        killer = Killer(Point.parse(KILL) if kill else None)
        history = resilient.fit(
            net,
            checkpoint_dir=directory,
            callbacks=[*callbacks, killer],
            epochs=EPOCHS,
            batch_size=4,
            save_freq=SAVE_FREQ,
            verbose=0,
            **self.args(),
        )
        return {
            "values": plain(fitting.values(net)),
            "history": plain(history.history),
            "callbacks": [
                {"class": type(each).__name__} | plain(capture.attributes(each, CLOCKS))
                for each in callbacks
            ],
            "files": {n: plain(_timeless(f)) for n, f in capture.contents(Path())},
        }


def _timeless(content: Any) -> Any:
    """Of the summaries of a TensorBoard the tags and steps."""
    return [tag[:2] for tag in content] if isinstance(content, list) else content


def plain(value: Any) -> Any:
    """The same as JSON, where functions have their names and arrays their digests."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape} {sha1(value.tobytes()).hexdigest()}"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, bool | int | float | str | None):
        return value
    return getattr(value, "__qualname__", type(value).__name__)
