"""Reads and writes what changes in place: arrays, tensors, variables, files and more.

Each kind of content is read as plain values and arrays, and written into a live object
of the same kind. Some kinds can also be made anew.
"""

import collections
import itertools
import json
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.keras_internals import BACKEND
from resilient.objects import buffers, kinds
from resilient.objects.sizing import is_frame, sample, tensor_size
from resilient.serialization import Encoded, classes, rng
from resilient.serialization.batches import pack, unpack
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.schema import taking

# Kinds of which a new object can be made.
MADE = frozenset({"ndarray", "value", "tensor", "key", "random"})
_VALUES = (set, bytearray)
# Types of most objects, which have parts.
_COMMON = frozenset(
    {list, dict, collections.OrderedDict, type, types.FunctionType, types.CellType}
)
KEPT_BYTES = 2**28  # most that a checkpoint keeps of a changed value of data


def kind_of(value: Any, *, files: bool = False) -> str | None:
    """The kind of an object's content; None if it has parts, or none of these.

    Args:
        value: Anything.
        files: Whether the position in an open file counts.
    """
    cls = type(value)
    of_keras = isinstance(value, list | dict) and classes.top_module(cls) == "keras"
    if cls in _COMMON or of_keras:
        return None
    if cls is np.ndarray:
        return "ndarray"
    if isinstance(value, _VALUES):
        return "value"
    if rng.is_jax_key(value):
        return "key"
    if tensor_size(value) is not None:
        return "tensor"
    if isinstance(value, keras.Variable) or _is_tensorflow_variable(value):
        return "variable"
    if rng.is_torch_generator(value):
        return "generator"
    if rng.is_generator(value):
        return None if isinstance(value, random.SystemRandom) else "random"
    if kinds.has_state_dict(value):
        return "state_dict"
    if kinds.is_table(value):
        return "table"
    held = buffers.held(value)
    if held is not None and (files or held.kind != "file"):  # callbacks write to files
        return held.kind
    if is_frame(value):
        return "library"
    return "library" if classes.is_of_library(cls) else None


def is_fixed(value: Any, kind: str) -> bool:
    """Whether such a value never changes, so that its identity says all."""
    return kind == "key" or (kind == "tensor" and not hasattr(value, "data_ptr"))


def read(value: Any, kind: str) -> Any:
    """The content of an object of a kind, not copied where that is possible."""
    if kind == "ndarray":
        return value
    if kind == "value":
        return set(value) if isinstance(value, set) else value
    if kind == "key":
        return rng.jax_key_content(value)
    if kind in ("tensor", "variable"):
        return _packed(value, kind)
    if kind == "generator":
        return rng.state(value)
    if kind == "random":
        return value
    if kind == "state_dict":
        return value.state_dict()
    if kind == "table":
        keys, values = value.export()
        return [np.asarray(keys), np.asarray(values)]
    held = buffers.held(value)
    if held is None:  # a file that is iterated
        raise NotEncodable("file", value, "its position is unknown")
    return held.plain


def mark(value: Any, kind: str, limit: float) -> str | None:
    """A checksum of the content, or None if there is none to compare.

    Args:
        value: The object.
        kind: The kind of its content.
        limit: Bytes above which a sample of an array or tensor is enough.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    if kind == "long" or is_frame(value):
        return sample(value)
    if kind == "library":
        return str(_shallow(value))
    if is_fixed(value, kind):
        return None
    if kind in ("ndarray", "tensor") and value.nbytes > limit:
        return sample(value)
    if kind == "ndarray" and not value.dtype.hasobject:
        found = xxhash.xxh3_128(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value).data)
        return found.hexdigest()
    return digest(read(value, kind))


def digest(plain: Any) -> str:
    """A checksum of plain values and arrays.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        data = encode(plain, arrays, "x")
    except RuntimeError as error:  # another thread changed a dict meanwhile
        raise NotEncodable("x", plain, str(error)) from error
    found = xxhash.xxh3_128(json.dumps(data).encode())
    for array in arrays.values():
        found.update(as_bytes(array).data)
    return found.hexdigest()


def write(value: Any, kind: str, plain: Any) -> None:
    """Give a live object the content of another.

    Raises:
        ValueError: It does not fit.
    """
    if kind == "ndarray":
        _require_alike(value, plain)
        value[...] = plain
    elif kind == "value":
        _require(type(value) is type(plain) or isinstance(value, set))
        value.clear()
        value.update(plain) if isinstance(value, set) else value.extend(plain)
    elif kind == "tensor":
        tensor = unpack(plain)
        _require_alike(value, tensor)
        value.data.copy_(tensor)
    elif kind == "variable":
        value.assign(unpack(plain))
    elif kind == "generator":
        rng.set_state(value, plain)
    elif kind == "random":
        _require(rng.is_generator(plain) and rng.kind(value) == rng.kind(plain))
        rng.set_state(value, rng.state(plain))
    elif kind == "state_dict":
        value.load_state_dict(plain)
    elif kind == "table":
        keys, _ = value.export()
        value.remove(keys)
        value.insert(*plain)
    else:
        buffers.write(value, kind, plain)


def made(kind: str, plain: Any) -> Any:
    """A new object with this content."""
    if kind == "tensor":
        tensor = unpack(plain)
        on_torch = BACKEND == "torch" and keras.ops.is_tensor(tensor)
        return keras.ops.convert_to_tensor(tensor) if on_torch else tensor
    if kind == "key":
        with taking("a random key"):
            return rng.jax_key(*plain)
    return plain


def items_of(value: Any) -> tuple[Any, ...]:
    """The very items of a container."""
    if not isinstance(value, dict):
        return tuple(value)
    ordered = isinstance(value, collections.OrderedDict)
    base: type[dict[Any, Any]] = collections.OrderedDict if ordered else dict
    return (*base.keys(value), *base.values(value))


def order(old: tuple[Any, ...], new: tuple[Any, ...]) -> np.ndarray | None:
    """The former index of each item; None if the items are not the same."""
    if len(old) != len(new):
        return None
    before, now = (np.fromiter(map(id, items), np.int64) for items in (old, new))
    first, last = (np.argsort(ids, kind="stable") for ids in (before, now))
    if not np.array_equal(before[first], now[last]):
        return None
    places = np.empty(len(new), np.int64)
    places[last] = first
    return places


def is_iterator(value: Any) -> bool:
    """Whether it is in the middle of something without an accessible position."""
    known = type(value).__module__ in ("builtins", "itertools")
    return isinstance(value, types.GeneratorType | itertools.count) or (
        known and isinstance(value, Iterator)
    )


def encoded(value: Any, kind: str, arrays: dict[str, np.ndarray], name: str) -> Encoded:
    """The content as JSON.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    return encode(read(value, kind), arrays, name)


def _packed(value: Any, kind: str) -> Any:
    if kind == "variable":
        value = value.value if isinstance(value, keras.Variable) else value.value()
    try:
        return pack(value)
    except Exception as error:  # symbolic, of no memory, or of an unknown dtype
        raise NotEncodable(kind, value, str(error)) from error


def _shallow(value: Any) -> list[Any]:
    """Which objects are in a library's object, and in the containers there."""
    found: list[Any] = []
    for name, item in classes.attributes(value).items():
        inner = items_of(item) if isinstance(item, list | dict | tuple) else ()
        plain = isinstance(item, bool | int | float | str | bytes | type(None))
        drawn = rng.is_generator(item) and rng.state(item)
        found += [name, item if plain else id(item), *map(id, inner), drawn]
    return found


def _is_tensorflow_variable(value: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, tf.Variable)


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError("another kind of content")


def _require_alike(live: Any, value: Any) -> None:
    _require((live.shape, live.dtype) == (value.shape, value.dtype))
