"""Keeps what a loop logs across restarts: a series of numbers for each name.

Numbers that a device is still computing are fetched when they are read or saved, so
logging a loss does not make the loop wait for it.
"""

import math
import sys
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient.errors import message

# NotImplementedError: a symbolic tensor of TensorFlow.
_WRONG = ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError
_PENDING = 128  # most numbers waiting to be fetched


class LogHistory(Mapping[str, list[float]]):
    """Name to the numbers logged under it, oldest first.

    ``history.steps(name)`` gives the step at which each of them was logged.
    """

    def __init__(self) -> None:
        # The steps and the numbers under each name.
        self._series: dict[str, tuple[array[int], array[float]]] = {}
        self._pending: deque[tuple[str, int, Any]] = deque()

    def __getitem__(self, name: str) -> list[float]:
        return self._fetched()[name][1].tolist()

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetched())

    def __len__(self) -> int:
        return len(self._fetched())

    def steps(self, name: str) -> list[int]:
        """The steps at which the numbers under a name were logged."""
        return self._fetched()[name][0].tolist()

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Log numbers.

        Args:
            step: Where the loop is.
            values: Scalars by name, of Python, NumPy or the backend.

        Raises:
            TypeError: One is not a number.
        """
        held = {name: _held(name, value) for name, value in values.items()}
        self._pending.extend((name, step, value) for name, value in held.items())
        self._fetched(_PENDING)

    def last(self, since: int) -> dict[str, float]:
        """The newest number of each name logged at step ``since`` or later."""
        found = self._fetched().items()
        return {name: values[-1] for name, (at, values) in found if at[-1] >= since}

    def capture(self) -> dict[str, Any]:
        """Everything, as arrays."""
        found = self._fetched().items()
        return {name: [np.array(at), np.array(values)] for name, (at, values) in found}

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Set what ``capture`` returned."""
        self._pending.clear()
        self._series = {
            name: (array("q", steps), array("d", values))
            for name, (steps, values) in captured.items()
        }

    def _fetched(self, but: int = 0) -> dict[str, "tuple[array[int], array[float]]"]:
        """All series, with what was logged, but for the newest ``but`` numbers."""
        while len(self._pending) > but:
            name, step, value = self._pending.popleft()
            number = _number(value)
            steps, values = self._series.setdefault(name, (array("q"), array("d")))
            steps.append(step)
            values.append(number)
        return self._series


def _held(name: str, value: Any) -> Any:
    """The current value, safe from later changes; fetched if it is ready.

    Raises:
        TypeError: It is not a number.
    """
    try:
        if hasattr(value, "assign"):  # a variable: take its current value
            value = value.value() if callable(value.value) else value.value
        if isinstance(value, int | float):
            return float(value)
        if math.prod(value.shape) != 1:
            raise TypeError
        library = type(value).__module__.partition(".")[0]
        if library == "torch" and value.device.type != "cpu":
            return value.detach().clone()
        if library in ("jax", "jaxlib"):
            if isinstance(value, sys.modules["jax"].core.Tracer):
                raise TypeError
            return value
        return _number(value)
    except _WRONG as error:
        raise TypeError(
            message(
                "run.log records numbers only.",
                received=f"{name}={value!r}"[:300],
                hint="Pass scalars, outside traced functions; reduce arrays "
                "first, for example to their mean.",
            )
        ) from error


def _number(value: Any) -> float:
    if hasattr(value, "detach"):
        return float(value.detach().item())
    return float(value if isinstance(value, float) else np.asarray(value).item())
