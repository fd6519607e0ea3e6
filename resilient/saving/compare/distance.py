"""How far apart two arrays are: in bits, as numbers, and in ulps.

A unit in the last place (ulp) is the gap between one float and the next in its type.
Arrays are compared in pieces, so memory does not grow with their size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_PIECE = 1 << 20  # elements compared at a time
_WORD = (1 << 32) - 1


@dataclass(frozen=True)
class Distance:
    """How far apart two arrays of one shape are.

    Attributes:
        count: Elements that differ: in any bit, or as numbers if the dtypes differ.
        unlike: How many of these differ as numbers. The others differ only in the sign
            of a zero or the bits of a NaN.
        nans: How many of these are NaN on one side only.
        max_abs: The largest absolute difference of the others, possibly infinite; None
            if there are no others or the dtype is not numeric.
        max_ulps: The same in ulps, for floats of the same dtype.
    """

    count: int = 0
    unlike: int = 0
    nans: int = 0
    max_abs: float | None = None
    max_ulps: int | None = None

    def __add__(self, other: "Distance") -> "Distance":
        return Distance(
            self.count + other.count,
            self.unlike + other.unlike,
            self.nans + other.nans,
            _most(self.max_abs, other.max_abs),
            _most(self.max_ulps, other.max_ulps),
        )


def distance(a: np.ndarray, b: np.ndarray) -> Distance:
    """How far apart two arrays of one shape are."""
    found = Distance()
    for one, other in _pieces(a, b):
        found += _of_piece(one, other)
    return found


def seed_words(seeds: np.ndarray) -> np.ndarray:
    """Seeds as unsigned integers: torch stores their 32 bits as signed ones."""
    return (seeds.astype(np.int64) & _WORD).astype(np.uint32)


def _most(one: Any, other: Any) -> Any:
    return max((x for x in (one, other) if x is not None), default=None)


def _pieces(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    one, other = (np.ascontiguousarray(each).reshape(-1) for each in (a, b))
    for start in range(0, a.size, _PIECE):
        place = slice(start, start + _PIECE)
        yield one[place], other[place]


def _of_piece(a: np.ndarray, b: np.ndarray) -> Distance:
    numbers = _are_numbers(a) and _are_numbers(b)
    if one_dtype := a.dtype == b.dtype:
        differ = _differ_in_bits(a, b)
    elif numbers:
        differ = _unlike(a, b)
    else:
        differ = np.ones(len(a), bool)
    if not differ.any():
        return Distance()
    a, b = (each[differ].astype(each.dtype.newbyteorder("=")) for each in (a, b))
    if not numbers:
        return Distance(len(a), len(a))
    unlike, nans = _unlike(a, b), _is_nan(a) != _is_nan(b)
    finite = unlike & ~nans
    return Distance(
        len(a),
        int(unlike.sum()),
        int(nans.sum()),
        _max_abs(a[finite], b[finite]),
        _max_ulps(a[finite], b[finite]) if one_dtype else None,
    )


def _differ_in_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    size = a.dtype.itemsize
    if not size:
        return np.zeros(len(a), bool)
    bits = f"u{size}" if size in (1, 2, 4, 8) else f"({size},)u1"
    differ = a.view(bits) != b.view(bits)
    found: np.ndarray = np.any(differ.reshape(len(a), -1), axis=1)
    return found


def _are_numbers(array: np.ndarray) -> bool:
    # ml_dtypes has bfloat16 and float8, which are void to NumPy.
    return array.dtype.kind in "biufc" or "float" in array.dtype.name


def _are_integers(*arrays: np.ndarray) -> bool:
    return all(array.dtype.kind in "biu" for array in arrays)


def _wide(array: np.ndarray) -> np.ndarray:
    """The same numbers in a type that NumPy can compute with."""
    return array.astype(np.result_type(array, np.float64) if _plain(array) else float)


def _plain(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"


def _is_nan(array: np.ndarray) -> np.ndarray:
    if _are_integers(array):
        return np.zeros(len(array), bool)
    found: np.ndarray = np.isnan(_wide(array))
    return found


def _unlike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements differ as numbers; NaN equals NaN."""
    if _are_integers(a, b):
        unlike = (_negative(a) != _negative(b)) | (_as_64(a) != _as_64(b))
    else:
        unlike = (_wide(a) != _wide(b)) & ~(_is_nan(a) & _is_nan(b))
    found: np.ndarray = unlike
    return found


def _negative(integers: np.ndarray) -> np.ndarray:
    found: np.ndarray = integers < 0
    return found


def _as_64(integers: np.ndarray) -> np.ndarray:
    """Their 64 bits, in the order of the integers among those of the same sign."""
    return integers.astype(np.uint64)


def _max_abs(a: np.ndarray, b: np.ndarray) -> float | None:
    if not len(a):
        return None
    if _are_integers(a, b):
        x, y = _as_64(a), _as_64(b)
        alike = _negative(a) == _negative(b)
        larger = np.where(alike, x > y, _negative(b))
        return float(np.where(larger, x - y, y - x).max())
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(np.abs(_wide(a) - _wide(b)).max())
    return math.inf if math.isnan(found) else found  # of complex infinities


def _max_ulps(a: np.ndarray, b: np.ndarray) -> int | None:
    if a.dtype.kind == "c":
        part = np.dtype(f"f{a.dtype.itemsize // 2}")
        a, b = a.view(part), b.view(part)
    size = a.dtype.itemsize
    if not len(a) or _are_integers(a) or size > 8:
        return None
    sign = np.uint64(1 << (8 * size - 1))
    x, y = (each.view(f"u{size}").astype(np.uint64) for each in (a, b))
    alike = (x & sign) == (y & sign)
    x, y = x & ~sign, y & ~sign  # steps from zero
    return int(np.where(alike, np.maximum(x, y) - np.minimum(x, y), x + y).max())
