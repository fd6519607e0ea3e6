"""Checks the numbers that policies are made of."""

import math
import operator
from numbers import Real
from typing import TypeVar

from resilient.errors import message

_Number = TypeVar("_Number", int, float)


def positive(value: _Number, where: str, todo: str) -> _Number:
    """``value``, if it is positive and finite; otherwise ValueError."""
    if not 0 < value < math.inf:
        raise ValueError(
            message(f"{where} needs a positive number.", received=value, hint=todo)
        )
    return value


def count(value: object, where: str, or_else: str = "") -> int:
    """``value`` as an int of 1 or more; otherwise TypeError or ValueError.

    Args:
        value: What was given.
        where: What it was given as.
        or_else: What else could be.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            message(
                f"{where} needs a whole number.",
                received=f"{value!r} of type {type(value).__name__}",
                hint=f"Use an int of 1 or more{or_else}.",
            )
        ) from None
    return positive(number, where, "Use 1 or more.")


def duration(value: object, where: str) -> float:
    """``value`` as a positive float; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            message(
                f"{where} needs a number.",
                received=f"{value!r} of type {type(value).__name__}",
                hint="Use an int or a float greater than 0.",
            )
        )
    return positive(float(value), where, "Use a finite number above 0.")
