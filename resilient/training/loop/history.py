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
_NOT_NUMBERS = (
    *(ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError),
)
_PENDING = 128  # most numbers waiting to be fetched


class LogHistory(Mapping[str, list[float]]):
    """Name to the numbers logged under it, oldest first.

    ``history.steps(name)`` gives the step at which each of them was logged.
    """

    def __init__(self) -> None:
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._pending: deque[tuple[str, int, Any]] = deque()

    def __getitem__(self, name: str) -> list[float]:
        self._fetch()
        return self._values[name].tolist()

    def __iter__(self) -> Iterator[str]:
        self._fetch()
        return iter(self._values)

    def __len__(self) -> int:
        self._fetch()
        return len(self._values)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(self[name]):,} numbers" for name in self)
        return f"<history of {sizes or 'nothing'}>"

    def steps(self, name: str) -> list[int]:
        """The steps at which the numbers under a name were logged."""
        self._fetch()
        return self._steps[name].tolist()

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
        while len(self._pending) > _PENDING:
            self._fetch_one()

    def last(self, since: int) -> dict[str, float]:
        """The newest number of each name logged at step ``since`` or later."""
        self._fetch()
        return {
            name: values[-1]
            for name, values in self._values.items()
            if self._steps[name][-1] >= since
        }

    def capture(self) -> dict[str, Any]:
        """Everything, as arrays."""
        self._fetch()
        return {
            name: [np.array(self._steps[name]), np.array(values)]
            for name, values in self._values.items()
        }

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Set what ``capture`` returned."""
        self._pending.clear()
        self._steps = {name: array("q", steps) for name, (steps, _) in captured.items()}
        self._values = {n: array("d", values) for n, (_, values) in captured.items()}

    def _fetch(self) -> None:
        while self._pending:
            self._fetch_one()

    def _fetch_one(self) -> None:
        name, step, value = self._pending.popleft()
        self._steps.setdefault(name, array("q")).append(step)
        self._values.setdefault(name, array("d")).append(_number(value))


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
    except _NOT_NUMBERS as error:
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
