"""Checks numbers that were given as arguments, of policies and of everything else."""

import math
from numbers import Integral, Real

from resilient.errors import message


def integer(
    value: object,
    name: str,
    *,
    least: int = 1,
    most: float = math.inf,
    or_else: str = "",
) -> int:
    """``value`` as an int; otherwise TypeError or ValueError.

    Args:
        value: What was given.
        name: What it was given as.
        least: The smallest that is allowed.
        most: The largest.
        or_else: What else is allowed.
    """
    allowed = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
    text = message(
        f"{name} must be an integer {allowed}{or_else}.", received=repr(value)
    )
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(text)
    if not least <= (found := int(value)) <= most:
        raise ValueError(text)
    return found


def number(value: object, name: str) -> float:
    """``value`` as a positive float; otherwise TypeError or ValueError."""
    text = message(
        f"{name} must be a positive number.",
        received=repr(value),
        hint="Use a finite int or float above 0.",
    )
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(text)
    if not 0 < (found := float(value)) < math.inf:
        raise ValueError(text)
    return found
