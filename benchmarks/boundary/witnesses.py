"""What the witnesses of a step cost, in processor time of the threads that leave them.

Our own functions are timed, without what the timer itself takes: in a fit, where each
step has used the caches meanwhile, and called in a row with what that fit's last step
gave them.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import keras
import numpy as np

import resilient
from resilient.witness.witness import Witness

_EPOCHS = 11
_NEVER = 10**9  # steps between saves
_NAMES = ("drawn", "logged", "trained")  # as a step calls them


class Stopwatch:
    """Times the functions of a witness, by step.

    Attributes:
        spent: Nanoseconds of each function, by step.
    """

    def __init__(self) -> None:
        self.spent: dict[str, Counter[int]] = {name: Counter() for name in _NAMES}
        self._calls: dict[str, tuple[Any, ...]] = {}  # the last ones, without the step
        self._step = 0
        pairs = [(time.thread_time_ns(), time.thread_time_ns()) for _ in range(10_000)]
        self._timer = statistics.median(end - begun for begun, end in pairs)

    def timed(self, name: str) -> Callable[..., Any]:
        """A function that takes the place of the one of this name."""
        original, has_step = getattr(Witness, name), name != "drawn"

        def call(witness: Witness, *args: Any) -> Any:
            begun = time.thread_time_ns()
            returned = original(witness, *args)
            spent = time.thread_time_ns() - begun - self._timer
            step = args[0] if has_step else self._step + 1
            self.spent[name][step] += spent
            self._calls[name] = args[has_step:]
            if name == "trained":
                self._step = step
            return returned

        return call

    def in_a_row(self, witness: Witness, steps: int) -> None:
        """Do so many steps more, that only call what the last one called."""
        for step in range(self._step + 1, self._step + 1 + steps):
            for name in filter(self._calls.get, _NAMES):
                given = self._calls[name]
                args = given if name == "drawn" else (step, *given)
                getattr(witness, name)(*args)

    def microseconds(self, steps: range) -> dict[str, list[float] | float]:
        """Quartiles of what these steps cost, and their mean."""
        found = [sum(each[step] for each in self.spent.values()) for step in steps]
        every = np.array(found) / 1e3
        quartiles = np.quantile(every, (0.25, 0.5, 0.75)).tolist()
        return {"quartiles": quartiles, "mean": float(every.mean())}


def measured(
    model: keras.Model, arrays: Mapping[str, Any], steps: int
) -> dict[str, Any]:
    """So many steps of a fit, and as many in a row.

    Args:
        model: To train.
        arrays: What ``fit`` is given.
        steps: Of an epoch; the first one is not counted.
    """
    stopwatch, witnesses = Stopwatch(), []
    original, last = Witness.begin, steps * _EPOCHS

    def begin(witness: Witness, *args: Any, **given: Any) -> int:
        witnesses.append(witness)
        return original(witness, *args, **given)

    timed = {name: stopwatch.timed(name) for name in _NAMES}
    with (
        mock.patch.multiple(Witness, begin=begin, **timed),
        tempfile.TemporaryDirectory() as directory,
    ):
        given = {**arrays, "checkpoint_dir": directory, "save_freq": _NEVER}
        resilient.fit(model, **given, epochs=_EPOCHS)
        stopwatch.in_a_row(witnesses[0], last)
    return {
        "within": stopwatch.microseconds(range(steps + 1, last)),
        "row": stopwatch.microseconds(range(last + steps + 1, 2 * last)),
    }
