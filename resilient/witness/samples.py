"""Words about a few elements of tensors, without waiting for a device."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import xxhash

from resilient.backends.arrays import spread_elements
from resilient.backends.base import Peeked
from resilient.errors import NotSupportedError

_LEAVES = 8  # of the state, in one digest
_OF_LEAF = 128  # elements, spread over each
_OF_BATCH = 512
_PLAIN = float | int | np.ndarray | np.generic
_NO_ARRAYS = AttributeError, NotSupportedError, TypeError, ValueError

# Returns a word below 2**64; None: not computed yet, or gone by now.
Pending = Callable[[], int | None]

# The ``peek`` of the backend.
Peek = Callable[[Mapping[str, Any], int], Peeked]


def chosen(leaves: Sequence[Any], step: int) -> list[Any]:
    """The leaves that are digested after a step: others each time, and no metrics."""
    leaves = [leaf for leaf in leaves if leaf.slot[0] != "metrics"]
    count = len(leaves)
    first = step * _LEAVES if count > _LEAVES else 0
    return [leaves[(first + at) % count] for at in range(min(count, _LEAVES))]


def of_leaves(peek: Peek, tensors: Sequence[Any]) -> Pending:
    """The digest of leaves of the state."""
    return _digest(peek, tensors, _OF_LEAF)


def of_batch(peek: Peek, batch: Any) -> Pending | None:
    """The digest of a batch; None: it has parts that are no plain arrays."""
    try:
        parts = [part for part in keras.tree.flatten(batch) if part is not None]
        return _digest(peek, parts, _OF_BATCH)
    except _NO_ARRAYS:
        return None


def of_number(peek: Peek, value: Any) -> Pending:
    """The bits of a number as a 64-bit float; of texts none."""
    try:
        parts = _peek(peek, [value], 1)
    except _NO_ARRAYS:
        return lambda: None

    def read() -> int | None:
        arrays = parts()
        return None if arrays is None else bits_of(float(arrays[0].flat[0]))

    return read


def bits_of(number: float) -> int:
    """The bits of a 64-bit float; of every NaN the same."""
    return int(np.float64(math.nan if math.isnan(number) else number).view(np.uint64))


def _digest(peek: Peek, tensors: Sequence[Any], most: int) -> Pending:
    parts = _peek(peek, tensors, most)

    def read() -> int | None:
        arrays = parts()
        if not arrays or any(each.dtype.hasobject for each in arrays):
            return None  # bytes of objects are addresses
        found = xxhash.xxh3_64()
        for array in arrays:
            found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return found.intdigest()

    return read


def _peek(peek: Peek, tensors: Sequence[Any], most: int) -> Peeked:
    """The same, where some are of NumPy or Python: those come first."""
    plain = [np.asarray(each) for each in tensors if isinstance(each, _PLAIN)]
    others = [each for each in tensors if not isinstance(each, _PLAIN)]
    here = spread_elements(plain, most)
    there = peek({f"tensor-{at}": each for at, each in enumerate(others)}, most)

    def read() -> list[np.ndarray] | None:
        arrays = there()
        return None if arrays is None else [*here, *arrays]

    return read
