"""Fits with and without saves: what an epoch takes, and what one save adds to it.

Times are those of whole epochs, seen from the hooks of epochs alone: hooks of batches
would make JAX wait for each. The first epoch and the save at the end are not counted.
"""

import math
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
from limits import Limits
from paired import summary
from rich.console import Console
from rich.progress import track
from state import (
    BACKEND,
    LAYERS,
    device,
    host_arrays,
    make_model,
    samples,
    settle,
    width_of,
)
from subjects import available
from ways import OFTEN, PLAIN, Way, compared, saving

_BATCH = 8
_SMALL_BATCH = 64
_SMALL_LAYERS = 2
_SMALL_WIDTHS = (544, 448, 384, 320, 256, 208)  # 7 to 1 MB of state
_SMALL_STEP = 2e-3  # seconds, at most
_QUICK_STEP = 15e-3  # seconds; with longer ones an epoch with 50 batches is too long
# In any later epoch of 205 batches 4 saves are due, in one of 105 batches 2; what is
# still written when they end is as much as was when they began.
_SMALL_STEPS, _STEPS = 205, 105
_EPOCHS = 4  # in a fit; the first, which traces and allocates, is not counted
_SAVES = 8  # in a fit; the first, which allocates, is not counted
_WRITES = 6  # an epoch takes as long as so many raw writes: peers are slower
_ERRORS = Console(stderr=True)


class Clock(keras.callbacks.Callback):
    """Wall seconds of each epoch, and how many cores it kept busy."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.cores: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch begins."""
        self._begun = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch ended; Keras has waited for its last step, to have the logs."""
        wall, processor = self._begun
        self.seconds.append(time.perf_counter() - wall)
        self.cores.append((time.process_time() - processor) / self.seconds[-1])


class Fits:
    """One model, fitted again and again.

    Args:
        width: Of its layers.
        batch_size: Samples in a batch.
        root: Directory for all files.
        layers: How many.
    """

    def __init__(
        self, width: int, batch_size: int, root: Path, layers: int = LAYERS
    ) -> None:
        self._model = make_model(width, batch_size, layers)
        self._batch_size = batch_size
        self._root = root
        self._limits = Limits(host_arrays(self._model), root)
        self._saves: dict[str, Counter[str]] = defaultdict(Counter)
        clock = self._run(PLAIN, OFTEN, 3)
        self.facts = {
            "nbytes": self._limits.nbytes,
            "step": min(clock.seconds) / OFTEN,
            "cores": statistics.median(clock.cores),
        }

    def epochs(self, ways: Sequence[Way], steps: int, repeats: int) -> dict:
        """Ratios of the later epochs' mean time to that of `model.fit`."""
        pairs: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
        for turn, way in _turns(ways, repeats + 1, self._what("epochs")):
            order = (PLAIN, way) if turn % 2 else (way, PLAIN)
            spent = {each.name: self._later_epochs(each, steps) for each in order}
            if turn:  # the first warms up
                pairs[way.name].append((spent[way.name], spent[PLAIN.name]))
        found = {
            name: summary(*zip(*pair, strict=True)) for name, pair in pairs.items()
        }
        return self.facts | {"steps": steps, "ways": self._with_saves(found)}

    def added(self, ways: Sequence[Way], repeats: int) -> dict:
        """Seconds that a save adds to training, beside a copy of the state.

        With a save every 3n + 1 batches, epochs of n batches come in threes: one with a
        save, near its start; one in which a slow write may go on; and one without.
        """
        write = statistics.median(self._limits.write() for _ in range(5))
        steps = max(_SAVES + 2, math.ceil(_WRITES * write / self.facts["step"]))
        rows: dict[str, list[tuple[float, ...]]] = {way.name: [] for way in ways}
        for _, way in _turns(ways, repeats, self._what("added")):
            copied = statistics.median(self._memcpy() for _ in range(5))
            clock = self._run(way._replace(every=3 * steps + 1), steps, 3 * _SAVES + 3)
            for at in range(6, 3 * _SAVES + 1, 3):
                before, save, rest, after = clock.seconds[at - 1 : at + 3]
                rows[way.name].append((before + after, save + rest, copied))
        found = {
            name: _of_added(*zip(*each, strict=True), steps=steps)
            for name, each in rows.items()
        }
        return self.facts | {"steps": steps, "ways": self._with_saves(found)}

    def _memcpy(self) -> float:
        """After a step, as wherever it is measured."""
        self._model.train_on_batch(*samples(self._model, self._batch_size))
        settle(self._model)
        return self._limits.memcpy()

    def _later_epochs(self, way: Way, steps: int) -> float:
        return statistics.mean(self._run(way, steps, _EPOCHS).seconds[1:])

    def _run(self, way: Way, steps: int, epochs: int) -> Clock:
        """One fit in a new directory."""
        clock = Clock()
        x, y = samples(self._model, steps * self._batch_size)
        given = {"x": x, "y": y, "batch_size": self._batch_size, "epochs": epochs}
        given |= {"verbose": 0, "callbacks": [clock]}
        with tempfile.TemporaryDirectory(dir=self._root) as directory:
            saved = way.fit(self._model, Path(directory), way.every, given)
        if saved is not None:
            counts = self._saves[way.name]
            counts["made"] += saved
            counts["due"] += math.ceil(steps * epochs / way.every)  # and at the end
        return clock

    def _with_saves(self, found: dict[str, Any]) -> dict[str, Any]:
        return {name: one | self._saves.get(name, {}) for name, one in found.items()}

    def _what(self, of: str) -> str:
        return f"{BACKEND}, fits, {self.facts['nbytes'] / 1e6:.0f} MB, {of}"


def _turns(ways: Sequence[Way], repeats: int, what: str) -> Iterable[tuple[int, Way]]:
    """All ways in random order, again and again."""
    order = random.Random(0)
    turns = [
        (turn, way)
        for turn in range(repeats)
        for way in order.sample(list(ways), len(ways))
    ]
    return track(turns, what, console=_ERRORS)


def _of_added(
    without: Sequence[float],
    having: Sequence[float],
    copied: Sequence[float],
    *,
    steps: int,
) -> dict[str, Any]:
    added = [b - a for a, b in zip(without, having, strict=True)]
    found = summary(added, copied)
    # Of the shortest epochs, which other work on the machine disturbs least.
    found["of_shortest"] = (min(having) - min(without)) / min(copied)
    often = [epochs / (2 * steps) * OFTEN for epochs in without]
    found[f"of_{OFTEN}_batches"] = summary(added, often)
    return found


def measure(sizes: Sequence[float], repeats: int, directory: str) -> dict[str, Any]:
    """The epochs of quick fits, and what a save adds at each size."""
    kinds, left_out = available()
    found: dict[str, Any] = {"backend": BACKEND, "device": device(), "epochs": []}
    found |= {"added": [], "left_out": left_out}
    with tempfile.TemporaryDirectory(dir=directory) as root:
        small = _small(Path(root))
        ways = compared(kinds)
        found["epochs"].append(small.epochs(ways, _SMALL_STEPS, 2 * repeats))
        for size in sizes:
            fits = Fits(width_of(size), _BATCH, Path(root))
            if fits.facts["step"] < _QUICK_STEP:
                found["epochs"].append(fits.epochs(ways, _STEPS, repeats))
            found["added"].append(fits.added(saving(kinds), max(1, repeats // 2)))
            del fits
    return found


def _small(root: Path) -> Fits:
    """A model with steps of 1 to 2 ms, or the smallest one."""
    for width in _SMALL_WIDTHS:
        fits = Fits(width, _SMALL_BATCH, root, _SMALL_LAYERS)
        if fits.facts["step"] <= _SMALL_STEP:
            break
    return fits
