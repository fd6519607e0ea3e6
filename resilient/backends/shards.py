"""A tensor that may be spread over devices: the part of it that this process writes.

JAX cuts an array into shards of one shape. If several devices hold the same shard, the
process whose device has replica 0 owns it. So each element has one owner, and processes
need not ask each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shards:
    """The shards of one array that this process owns.

    Attributes:
        shape: Of the whole array.
        dtype: Of the whole array.
        shard_shape: Of every shard; of an array in one piece, ``shape``.
        owned: Place in the grid of shards -> what NumPy can view as an array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shard_shape: tuple[int, ...]
    owned: dict[tuple[int, ...], Any]


def one_piece(array: np.ndarray) -> Shards:
    """An array that this process owns whole."""
    owned = {(0,) * array.ndim: array} if array.size else {}
    return Shards(array.shape, array.dtype, array.shape, owned)


def owned_shards(array: Any, hold: Callable[[Any], Any]) -> Shards:
    """What this process owns of a ``jax.Array``, which has an element at least.

    Args:
        array: In shards.
        hold: Turns a shard, an array on one device, into what is kept.
    """
    shard_shape = array.sharding.shard_shape(array.shape)

    def place(index: tuple[slice, ...]) -> tuple[int, ...]:
        sizes = zip(index, shard_shape, strict=True)
        return tuple((each.start or 0) // size for each, size in sizes)

    owned = {
        place(shard.index): hold(shard.data)
        for shard in array.addressable_shards
        if shard.replica_id == 0
    }
    return Shards(array.shape, np.dtype(array.dtype), shard_shape, owned)
