"""What an attribute of a dataset is, how its content is read, and what that costs.

Content is read as plain values and arrays, whatever holds it: tensors of any library,
generators of random numbers, objects with ``state_dict``, Keras objects with variables.
Datasets hold gigabytes: what is ``LARGE`` is never read whole unless it changed, but
told by its identity and a checksum of some 4,000 elements of it.

Whatever is not known here (handles, locks, memory maps, transforms of libraries) is
``OTHER``: the script makes it anew, and ``marks`` tells whether it changed.
"""

import collections
import enum
import itertools
import json
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import xxhash

from resilient import keras_internals
from resilient.objects import kinds
from resilient.objects.datasets import buffers
from resilient.serialization import Encoded, classes, rng
from resilient.serialization.batches import pack, unpack
from resilient.serialization.json_arrays import as_bytes
from resilient.serialization.json_types import BY_TYPE
from resilient.serialization.json_values import NotEncodable, encode

WHOLE_BYTES = 2**24  # read whole to see whether it changed: 2 ms
KEPT_BYTES = 2**28  # kept in a checkpoint where it changed
LEAVES = 10_000  # of nested values
SAMPLED = 4096
WRITTEN = frozenset({"state_dict", "variables", "generator"}) | buffers.KINDS

_SCALARS = frozenset({type(None), bool, int, float, complex})
_TEXTS = frozenset({str, bytes, bytearray})
_MAPPINGS = frozenset(
    {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
)
_SEQUENCES = frozenset({list, tuple, set, frozenset, collections.deque})
_NUMBERS = ({int}, {float})


class Weight(enum.Enum):
    """Whether something is a plain value, and one that is cheap to read."""

    LIGHT = "light"
    LARGE = "large"
    OTHER = "other"


class Content(NamedTuple):
    """What is inside an attribute's value.

    Attributes:
        kind: How it was read, and is to be written.
        plain: The content.
        weight: Of the content.
    """

    kind: str
    plain: Any
    weight: Weight


class Kept(NamedTuple):
    """Content as JSON, with copies of its larger arrays."""

    data: Encoded
    arrays: dict[str, np.ndarray]


def read(value: Any) -> Content:
    """The content of a value; reads nothing large."""
    if _is_table(value):
        return Content("table", value, Weight.LARGE)
    if rng.is_jax_key(value):
        return Content("key", rng.jax_key_content(value), Weight.LIGHT)
    size = tensor_size(value)
    if size is not None:
        if size > WHOLE_BYTES:
            return Content("tensor", value, Weight.LARGE)
        try:
            return Content("tensor", pack(value), Weight.LIGHT)
        except Exception:  # symbolic, or with elements that NumPy does not know
            return Content("value", value, Weight.OTHER)
    if _is_module(value) or _is_trained(value):
        return Content("value", value, Weight.OTHER)
    if kinds.has_state_dict(value):
        return Content("state_dict", value.state_dict(), Weight.LIGHT)
    if variables := kinds.variables(value):
        if sum(map(_variable_bytes, variables)) > WHOLE_BYTES:
            return Content("value", value, Weight.OTHER)  # a model, not an augmentation
        packed = [pack(getattr(v, "value", v)) for v in variables]
        return Content("variables", packed, Weight.LIGHT)
    if rng.is_torch_generator(value):
        return Content("generator", rng.state(value), Weight.LIGHT)
    held = buffers.held(value)
    if held is not None and held.nbytes <= WHOLE_BYTES:
        return Content(held.kind, held.plain, Weight.LIGHT)
    return Content("value", value, weigh(value))


def write(value: Any, kind: str, plain: Any) -> None:
    """Give a living object the content that was read from one like it.

    Raises:
        ValueError: It is of another shape or name.
        OSError: A file cannot be read there.
    """
    if kind == "state_dict":
        value.load_state_dict(plain)
    elif kind == "variables":
        for variable, packed in zip(kinds.variables(value), plain, strict=True):
            variable.assign(unpack(packed))
    elif kind == "generator":
        rng.set_state(value, plain)
    else:
        buffers.write(value, kind, plain)


def made(kind: str, plain: Any) -> Any:
    """A new value of content that was read and is not written in place."""
    if kind == "tensor":
        return unpack(plain)
    return rng.jax_key(*plain) if kind == "key" else plain


def keep(plain: Any, name: str) -> Kept:
    """Encode content, with copies of its larger arrays, whose names begin so.

    Raises:
        NotEncodable: Some part of it cannot be encoded.
    """
    data, arrays = _encoded(plain, name)
    return Kept(data, {key: np.array(array) for key, array in arrays.items()})


def digest(plain: Any) -> tuple[Encoded, str]:
    """Light content as JSON without its larger arrays, and a checksum of all of it.

    Raises:
        NotEncodable: Some part of it cannot be encoded.
    """
    data, arrays = _encoded(plain, "content")
    found = xxhash.xxh3_128(json.dumps(data).encode())
    for array in arrays.values():
        found.update(as_bytes(array).data)
    return data, found.hexdigest()


def _encoded(plain: Any, name: str) -> tuple[Encoded, dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    try:
        return encode(plain, arrays, name), arrays
    except RuntimeError as error:  # another thread changed a dict under our hands
        raise NotEncodable(name, plain, str(error)) from error


def sample(value: Any) -> str:
    """A checksum of some elements of something large, always the same ones."""
    found = xxhash.xxh3_128()
    if type(value) is np.ndarray and not value.dtype.hasobject:
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value.flat[_places(value.size)]).data)
    elif type(value).__module__.partition(".")[0] == "torch":
        flat = value.detach().reshape(-1)
        found.update(pack_text(flat[_places(len(flat)).tolist()]))
    elif _is_table(value):
        rows = value.iloc[_places(len(value))[:64]]
        found.update(f"{len(value)} {rows.to_numpy().tolist()!r}".encode())
    elif isinstance(value, list | tuple):
        for place in _places(len(value))[:64]:
            item = value[place]
            if type(item) is np.ndarray and not item.dtype.hasobject and item.size:
                found.update(as_bytes(item.flat[_places(item.size)[:64]]).data)
    return found.hexdigest()  # the others' elements cannot be changed in place


def pack_text(tensor: Any) -> bytes:
    """The bytes of a tensor's elements."""
    return b"".join(part.tobytes() for part in pack(tensor)["parts"])


def tensor_size(value: Any) -> int | None:
    """Bytes of a tensor of torch, TensorFlow or JAX; None for anything else."""
    cls = type(value)
    module = cls.__module__.partition(".")[0]
    if module not in ("torch", "tensorflow", "jax", "jaxlib"):
        return None
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    if hasattr(value, "assign") or not hasattr(value, "__array__"):
        return None
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    size: int = np.dtype(value.dtype.as_numpy_dtype).itemsize
    return int(np.prod(value.shape)) * size


def weigh(value: Any) -> Weight:
    """Whether something is made of plain values alone, and how large that is."""
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
            return Weight.OTHER
        if nbytes > WHOLE_BYTES or leaves + len(todo) + len(inner) > LEAVES:
            return Weight.LARGE
        todo.extend(inner)
    return Weight.LIGHT


def size(value: Any) -> int | None:
    """Bytes of an array or a tensor; None for anything else."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return int(value.nbytes)
    return tensor_size(value)


def is_iterator(value: Any) -> bool:
    """Whether this is somewhere in the middle of something, and cannot tell where."""
    known = type(value).__module__ in ("builtins", "itertools")
    return isinstance(value, types.GeneratorType | itertools.count) or (
        known and isinstance(value, Iterator)
    )


def _is_plain_leaf(value: Any) -> bool:
    return (
        type(value) in BY_TYPE
        or isinstance(value, np.generic | np.dtype | enum.Enum)
        or classes.reference(value) is not None
    )


def _is_table(value: Any) -> bool:
    """Whether it is a DataFrame or a Series of pandas."""
    cls = type(value)
    return classes.top_module(cls) == "pandas" and hasattr(value, "iloc")


def _is_module(value: Any) -> bool:
    """A torch module is a transform or a model; on torch Keras's layers are too."""
    names = {(classes.top_module(c), c.__name__) for c in type(value).__mro__}
    return ("torch", "Module") in names and not kinds.is_keras(value)


def _is_trained(value: Any) -> bool:
    """The model that is trained has its own place in a checkpoint."""
    return keras_internals.is_trainer(value) and bool(value.compiled)


def _variable_bytes(variable: Any) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return int(np.prod(variable.shape)) * itemsize


def _places(count: int) -> np.ndarray:
    """Some of ``count`` places, spread at random so as to miss no pattern."""
    if count <= SAMPLED:
        return np.arange(count)
    return np.random.RandomState(0).randint(0, count, SAMPLED)
