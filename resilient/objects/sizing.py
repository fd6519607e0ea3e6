"""Samples large data, and knows what is large.

Datasets hold gigabytes: large content is identified by a checksum of about 4,000 of its
elements, always the same ones.
"""

import collections
from typing import Any

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.serialization import classes
from resilient.serialization.batches import pack

WHOLE_BYTES = 2**24  # read whole to detect changes: 2 ms
LEAVES = 10_000  # of nested values
SAMPLED = 4096
_BACKENDS = frozenset({"torch", "tensorflow", "jax", "jaxlib"})
_OF_TENSORS = ("shape", "dtype", "__array__")


def sample(value: Any) -> str:
    """A checksum of some elements of a large value, always the same ones."""
    found = xxhash.xxh3_128()
    if type(value) is np.ndarray and not value.dtype.hasobject:
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value.flat[_places(value.size)]).data)
    elif classes.top_module(type(value)) == "torch":
        flat = value.detach().reshape(-1)
        parts = pack(flat[_places(len(flat)).tolist()])["parts"]
        found.update(b"".join(part.tobytes() for part in parts))
    elif is_frame(value):
        rows = value.iloc[_places(len(value))[:64]]
        found.update(f"{len(value)} {rows.to_numpy().tolist()!r}".encode())
    elif isinstance(value, list | tuple):
        for place in _places(len(value))[:64]:
            item = value[place]
            if type(item) is np.ndarray and not item.dtype.hasobject and item.size:
                found.update(as_bytes(item.flat[_places(item.size)[:64]]).data)
    return found.hexdigest()  # elements of other kinds cannot change in place


def tensor_size(value: Any) -> int | None:
    """Bytes of a torch, TensorFlow or JAX tensor; None for anything else."""
    of_backend = classes.top_module(type(value)) in _BACKENDS
    alike = of_backend and all(hasattr(value, name) for name in _OF_TENSORS)
    if not alike or hasattr(value, "assign"):
        return None
    try:
        if hasattr(value, "nbytes"):
            return int(value.nbytes)
        size: int = np.dtype(value.dtype.as_numpy_dtype).itemsize
        return int(np.prod(value.shape)) * size
    except Exception:  # sparse tensors of torch, and of unknown shape
        return None


def is_long(value: Any) -> bool:
    """Whether it is a container of so much that it is not opened."""
    todo, leaves, nbytes = [value], 0, 0
    while todo:
        item = todo.pop()
        leaves += 1
        inner: Any = ()
        if isinstance(item, str | bytes | bytearray):
            nbytes += len(item)
        elif type(item) is np.ndarray:
            nbytes += item.nbytes if item is not value else 0
        elif isinstance(item, dict):
            inner = [*dict.keys(item), *dict.values(item)]
        elif isinstance(item, list | tuple | set | frozenset | collections.deque):
            numbers = type(item) is list and set(map(type, item)) in ({int}, {float})
            nbytes += 8 * len(item) if numbers else 0
            inner = () if numbers else item
        if nbytes > WHOLE_BYTES or leaves + len(todo) + len(inner) > LEAVES:
            return True
        todo.extend(inner)
    return False


def is_frame(value: Any) -> bool:
    """Whether it is a pandas DataFrame or Series."""
    cls = type(value)
    return classes.top_module(cls) == "pandas" and hasattr(value, "iloc")


def _places(count: int) -> np.ndarray:
    """Some of ``count`` indices, spread at random so as not to miss patterns."""
    if count <= SAMPLED:
        return np.arange(count)
    return np.random.RandomState(0).randint(0, count, SAMPLED)
