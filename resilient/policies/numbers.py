"""Checks the numbers that policies are made of."""

import math
import operator
from typing import TypeVar

from resilient.errors import describe

_Number = TypeVar("_Number", int, float)


def positive(value: _Number, where: str) -> _Number:
    """``value``, if it is positive and finite; otherwise ValueError."""
    if not 0 < value < math.inf:
        raise ValueError(
            describe(f"{where} needs a positive number.", value, "Use 1 or more.")
        )
    return value


def count(value: object, where: str) -> int:
    """``value`` as an int of 1 or more; otherwise TypeError or ValueError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return positive(operator.index(value), where)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            describe(
                f"{where} needs a whole number.",
                f"{value!r} of type {type(value).__name__}",
                "Use an int of 1 or more, or a policy where one is accepted.",
            )
        ) from None


def duration(value: object, where: str) -> float:
    """``value`` as a positive float; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            describe(
                f"{where} needs a number.",
                f"{value!r} of type {type(value).__name__}",
                "Use an int or a float greater than 0.",
            )
        )
    return positive(float(value), where)
