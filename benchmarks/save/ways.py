"""Ways to call fit: Keras's own, ours, and Keras's with a callback."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
from state import BACKEND
from subjects import Kind, Peer

import resilient

# Given the model, an empty directory, a number of batches between saves and the
# arguments of `fit`: fits, and returns the number of saves where that is in doubt.
Fit = Callable[[keras.Model, Path, int, dict[str, Any]], int | None]

NEVER = 10**9
OFTEN = 50


class Way(NamedTuple):
    """A fit, and how many batches are between its saves."""

    name: str
    fit: Fit
    every: int


def plain(
    model: keras.Model, directory: Path, every: int, given: dict[str, Any]
) -> None:
    """`model.fit`."""
    model.fit(**given)


def ours(model: keras.Model, directory: Path, every: int, given: dict[str, Any]) -> int:
    """`resilient.fit`, which makes fewer saves on a disk that is too slow for them."""
    saved: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "saved":
            saved.append(event["step"])

    resilient.fit(
        model, checkpoint_dir=directory, save_freq=every, on_event=on_event, **given
    )
    return len(saved)


def with_callback(make: Callable[[Path, int], keras.callbacks.Callback]) -> Fit:
    """`model.fit` with one callback more."""

    def fit(
        model: keras.Model, directory: Path, every: int, given: dict[str, Any]
    ) -> None:
        callbacks = [*given["callbacks"], make(directory, every)]
        model.fit(**given | {"callbacks": callbacks})

    return fit


class OnEveryBatch(keras.callbacks.Callback):
    """What Keras's loop takes to call anything at all after each batch."""

    def on_train_batch_end(
        self, batch: int, logs: Mapping[str, float] | None = None
    ) -> None:
        """Nothing."""


class SaveEvery(keras.callbacks.Callback):
    """Saves with a library that has no callback for Keras.

    Args:
        kind: Who saves.
        directory: Where.
        every: So many batches.
    """

    def __init__(self, kind: Kind, directory: Path, every: int) -> None:
        super().__init__()
        self._make = partial(kind, directory=directory)
        self._every = every
        self._trained = 0

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """The model is known."""
        self._subject = self._make(self.model)
        self._saving = False

    def on_train_batch_end(
        self, batch: int, logs: Mapping[str, float] | None = None
    ) -> None:
        """Save when it is due, after the save before has ended."""
        self._trained += 1
        if self._trained % self._every:
            return
        self._finish()
        if BACKEND == "jax":  # the variables are empty in mid-epoch
            self.model.jax_state_sync()
        self._subject.save()
        self._saving = True

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Wait for the last save."""
        self._finish()
        self._subject.close()

    def _finish(self) -> None:
        if self._saving:
            self._subject.wait()
            self._saving = False


PLAIN = Way("model.fit", plain, NEVER)


def compared(kinds: Sequence[Kind]) -> list[Way]:
    """Fits in which nothing is saved, and those with frequent saves."""
    empty = with_callback(lambda *_: OnEveryBatch())
    often = {"resilient.fit": ours} | _callbacks(kinds)
    return [
        Way("resilient.fit, no save due", ours, NEVER),
        Way("empty on_train_batch_end", empty, NEVER),
        *(Way(f"{name}, every {OFTEN}", fit, OFTEN) for name, fit in often.items()),
    ]


def saving(kinds: Sequence[Kind]) -> list[Way]:
    """Fits with saves, by callbacks and by libraries."""
    ways = {"resilient.fit": ours} | _callbacks(kinds) | _libraries(kinds)
    return [Way(name, fit, NEVER) for name, fit in ways.items()]


def _callbacks(kinds: Sequence[Kind]) -> dict[str, Fit]:
    """Those that are callbacks of Keras."""
    return {
        kind.name: with_callback(kind.callback)
        for kind in kinds
        if hasattr(kind, "callback")
    }


def _libraries(kinds: Sequence[Kind]) -> dict[str, Fit]:
    """Those that save beside training, and that a callback of their user's calls."""
    return {
        kind.name: with_callback(partial(SaveEvery, kind))
        for kind in kinds
        if kind.background and issubclass(kind, Peer) and not hasattr(kind, "callback")
    }
