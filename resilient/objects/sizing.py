"""Tells whether a value is plain, how large it is, and samples it.

Datasets hold gigabytes: ``LARGE`` content is identified by a checksum of about 4,000 of
its elements, always the same ones.
"""

import collections
import enum
from typing import Any

import numpy as np
import xxhash

from resilient.serialization import classes
from resilient.serialization.batches import pack
from resilient.serialization.json_arrays import as_bytes
from resilient.serialization.json_types import BY_TYPE

WHOLE_BYTES = 2**24  # read whole to detect changes: 2 ms
LEAVES = 10_000  # of nested values
SAMPLED = 4096

_SCALARS = frozenset({type(None), bool, int, float, complex})
_TEXTS = frozenset({str, bytes, bytearray})
_MAPPINGS = frozenset(
    {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
)
_SEQUENCES = frozenset({list, tuple, set, frozenset, collections.deque})
_NUMBERS = ({int}, {float})


class Size(enum.Enum):
    """Whether something is a plain value that is cheap to read."""

    LIGHT = "light"
    LARGE = "large"
    OTHER = "other"


def sample(value: Any) -> str:
    """A checksum of some elements of a large value, always the same ones."""
    found = xxhash.xxh3_128()
    if type(value) is np.ndarray and not value.dtype.hasobject:
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value.flat[_places(value.size)]).data)
    elif type(value).__module__.partition(".")[0] == "torch":
        flat = value.detach().reshape(-1)
        found.update(pack_text(flat[_places(len(flat)).tolist()]))
    elif is_table(value):
        rows = value.iloc[_places(len(value))[:64]]
        found.update(f"{len(value)} {rows.to_numpy().tolist()!r}".encode())
    elif isinstance(value, list | tuple):
        for place in _places(len(value))[:64]:
            item = value[place]
            if type(item) is np.ndarray and not item.dtype.hasobject and item.size:
                found.update(as_bytes(item.flat[_places(item.size)[:64]]).data)
    return found.hexdigest()  # elements of other kinds cannot change in place


def pack_text(tensor: Any) -> bytes:
    """The bytes of a tensor's elements."""
    return b"".join(part.tobytes() for part in pack(tensor)["parts"])


def tensor_size(value: Any) -> int | None:
    """Bytes of a torch, TensorFlow or JAX tensor; None for anything else."""
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    if module not in ("torch", "tensorflow", "jax", "jaxlib"):
        return None
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    if hasattr(value, "assign") or not hasattr(value, "__array__"):
        return None
    try:
        if hasattr(value, "nbytes"):
            return int(value.nbytes)
        size: int = np.dtype(value.dtype.as_numpy_dtype).itemsize
        return int(np.prod(value.shape)) * size
    except Exception:  # sparse tensors of torch, and of unknown shape
        return None


def size_of(value: Any) -> Size:
    """Whether something consists of plain values only, and how large it is."""
    todo, leaves, nbytes = [value], 0, 0
    while todo:
        item = todo.pop()
        kind = type(item)
        leaves += 1
        inner: Any = ()
        if kind in _SCALARS:
            continue
        if kind in _TEXTS:
            nbytes += len(item)
        elif kind is np.ndarray:
            nbytes += item.nbytes
            inner = item.flat if item.dtype.hasobject else ()
        elif kind is list and set(map(type, item)) in _NUMBERS:
            nbytes += 8 * len(item)
        elif kind in _SEQUENCES or (kind is not tuple and isinstance(item, tuple)):
            inner = item
        elif kind in _MAPPINGS:
            inner = [*item.keys(), *item.values()]
            if kind is collections.defaultdict:
                inner.append(item.default_factory)
        elif classes.is_plain(kind) and classes.reference(kind):
            inner = list(classes.attributes(item).values())
        elif not _is_plain_leaf(item):
            return Size.OTHER
        if nbytes > WHOLE_BYTES or leaves + len(todo) + len(inner) > LEAVES:
            return Size.LARGE
        todo.extend(inner)
    return Size.LIGHT


def nbytes_of(value: Any) -> int | None:
    """Bytes of an array or a tensor; None for anything else."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return int(value.nbytes)
    return tensor_size(value)


def _is_plain_leaf(value: Any) -> bool:
    return (
        type(value) in BY_TYPE
        or isinstance(value, np.generic | np.dtype | enum.Enum)
        or classes.reference(value) is not None
    )


def is_table(value: Any) -> bool:
    """Whether it is a pandas DataFrame or Series."""
    cls = type(value)
    return classes.top_module(cls) == "pandas" and hasattr(value, "iloc")


def _places(count: int) -> np.ndarray:
    """Some of ``count`` indices, spread at random so as not to miss patterns."""
    if count <= SAMPLED:
        return np.arange(count)
    return np.random.RandomState(0).randint(0, count, SAMPLED)
