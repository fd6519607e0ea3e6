"""Decodes JSON into Python values, by a closed table of tags.

Each tag has a function here or in ``json_types`` that builds one type from checked
parts. Nothing is looked up, imported or called by a name in the data: classes and
functions are chosen among those in ``known``. Nothing is allocated before its size is
compared with the available bytes.
"""

import base64
import enum
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded, classes, json_arrays, json_types
from resilient.serialization.classes import NOTHING, Known, NotKnownError
from resilient.serialization.schema import taking

_DEPTH = 500  # of JSON; ``encode`` stays below it


class _Source(NamedTuple):
    """The source for decoding a value.

    Attributes:
        arrays: The larger arrays.
        known: What it may refer to; None to check only the rest.
        depth: The depth of the value.
    """

    arrays: Mapping[str, np.ndarray]
    known: Known | None
    depth: int = 0
    refers: bool = False

    def decode(self, data: Encoded) -> Any:
        if self.depth > _DEPTH:
            raise ValueError("nested too deep")
        if isinstance(data, (list, dict)):
            return _decode(data, self._replace(depth=self.depth + 1))
        return data

    def find(self, name: Encoded) -> Any:
        """A class or function; None while only the rest is checked."""
        if not isinstance(name, str):
            raise ValueError("a reference is not a text")
        if self.known is None:
            return None
        found = self.known.get(name)
        if found is None:
            raise NotKnownError(name)
        return found


def decode(
    data: Encoded, arrays: Mapping[str, np.ndarray], known: Known = NOTHING
) -> Any:
    """Decode what ``encode`` returned into new objects that share nothing.

    Args:
        data: Any JSON, from a checkpoint.
        arrays: The larger arrays.
        known: What it may refer to.

    Raises:
        NotKnownError: It refers to any other class or function.
        MalformedError: It is not what ``encode`` returned, or an array is missing.
    """
    with taking("a value"):
        return _Source(arrays, known).decode(data)


class Reference(NamedTuple):
    """Stands for another object that was saved, by its home."""

    home: str


def decode_parts(data: Encoded, arrays: Mapping[str, np.ndarray], known: Known) -> Any:
    """Decode what ``encode_part`` returned; other objects are ``Reference``.

    Raises:
        MalformedError: As ``decode``.
    """
    with taking("a value"):
        return _Source(arrays, known, refers=True).decode(data)


def outline(data: Encoded, arrays: Mapping[str, np.ndarray]) -> Any:
    """The same without the content of arrays, and with None for the script's objects.

    Raises:
        MalformedError: As ``decode``.
    """
    with taking("a value"):
        return _Source(arrays, None).decode(data)


def check(data: Encoded, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise unless every encoded value in some JSON is well-formed.

    Args:
        data: Any JSON, with encoded values anywhere in it.
        arrays: The larger arrays.

    Raises:
        MalformedError: One is not, or an array is missing; or arrays are referred to
            so often that the values would be far larger than they are.
    """
    _check(data, json_arrays.Once(arrays))


def _check(data: Encoded, arrays: Mapping[str, Any]) -> None:
    if isinstance(data, dict) and data.keys() == {"!", "v"}:
        outline(data, arrays)
    elif isinstance(data, list | dict):
        for item in data.values() if isinstance(data, dict) else data:
            _check(item, arrays)


def _decode(data: Encoded, source: _Source) -> Any:
    if isinstance(data, list):
        return [source.decode(item) for item in data]
    if data.keys() != {"!", "v"} or not isinstance(data["!"], str):
        raise ValueError("an object without a tag")
    tag, content = data["!"], data["v"]
    if tag in _BUILDERS:
        return _BUILDERS[tag](content, source)
    if tag in json_types.BY_TAG:
        if not isinstance(content, list):
            raise ValueError(f"no list of the parts of {tag}")
        return json_types.BY_TAG[tag].made([source.decode(part) for part in content])
    raise ValueError(f"unknown tag {tag!r}")


def _pair(data: Encoded) -> tuple[Any, Any]:
    if not isinstance(data, list) or len(data) != 2:
        raise ValueError("not a pair")
    return data[0], data[1]


def _text(data: Encoded) -> bytes:
    if not isinstance(data, str):
        raise ValueError("not a text")
    return base64.b64decode(data, validate=True)


def _int(data: Encoded, source: _Source) -> int:
    if not isinstance(data, str):
        raise ValueError("not a text")
    if len(data) > json_types.INT_BITS // 4 + len("-0x"):
        raise ValueError(f"an int of {len(data):,} digits")
    return int(data, 16)


def _float(data: Encoded, source: _Source) -> float:
    (value,) = struct.unpack("<d", bytes.fromhex(data))
    return float(value)


def _str(data: Encoded, source: _Source) -> str:
    return _text(data).decode("utf-32-le", "surrogatepass")


def _bytes(data: Encoded, source: _Source) -> bytes:
    return _text(data)


def _list(data: Encoded, source: _Source) -> list[Any]:
    packed = source.decode(data)
    if type(packed) is not np.ndarray or packed.ndim != 1 or packed.dtype.hasobject:
        raise ValueError("not a list of numbers")
    if source.known is None:
        return []
    values: list[Any] = packed.tolist()
    return values


def _dict(data: Encoded, source: _Source) -> dict[Any, Any]:
    pairs = [_pair(pair) for pair in data]
    keys = json_types.distinct([source.decode(key) for key, _ in pairs])
    return {
        key: source.decode(item) for key, (_, item) in zip(keys, pairs, strict=True)
    }


def _array(data: Encoded, source: _Source) -> np.ndarray:
    if source.known is not None:
        return json_arrays.decode_array(data, source.arrays)
    stored = json_arrays.stored_array(data, source.arrays)
    return np.broadcast_to(np.zeros((), stored.dtype), stored.shape)  # of no memory


def _scalar(data: Encoded, source: _Source) -> Any:
    array = json_arrays.decode_array(data, source.arrays)
    if array.ndim:
        raise ValueError("a scalar with dimensions")
    return array[()]


def _objects(data: Encoded, source: _Source) -> np.ndarray:
    shape, items = _pair(data)
    built = np.empty(len(items), object)
    for index, item in enumerate(items):
        built[index] = source.decode(item)
    return built.reshape(json_arrays.checked_shape(shape))


def _dtype(data: Encoded, source: _Source) -> np.dtype[Any]:
    return json_arrays.decode_dtype(data)


def _import(data: Encoded, source: _Source) -> Any:
    return source.find(data)


def _enum(data: Encoded, source: _Source) -> Any:
    name, content = _pair(data)
    cls, value = source.find(name), source.decode(content)
    if cls is None:
        return None
    if not isinstance(cls, type) or not issubclass(cls, enum.Enum):
        raise ValueError(f"{name} is not an enumeration")
    if issubclass(cls, enum.Flag) and type(value) is int and not _has_missing(cls):
        return cls(value)  # members may be combined
    for member in cls.__members__.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    raise NotKnownError(f"a member of {name} of value {value!r}")


def _has_missing(cls: type) -> bool:
    """Whether user code would create a member for an unknown value."""
    users = (base for base in cls.__mro__ if base.__module__ != "enum")
    return any("_missing_" in vars(base) for base in users)


def _namedtuple(data: Encoded, source: _Source) -> Any:
    name, content = _pair(data)
    cls, items = source.find(name), source.decode(content)
    if not isinstance(items, list):
        raise ValueError("a named tuple without a list of items")
    if cls is None:
        return tuple(items)
    fields = getattr(cls, "_fields", None)
    if not isinstance(cls, type) or not issubclass(cls, tuple) or fields is None:
        raise ValueError(f"{name} is not a named tuple")
    if len(items) != len(fields):
        raise NotKnownError(f"{name} with {len(items)} fields")
    return tuple.__new__(cls, items)


def _object(data: Encoded, source: _Source) -> Any:
    name, content = _pair(data)
    cls, state = source.find(name), source.decode(content)
    if type(state) is not dict:
        raise ValueError("an object without attributes")
    return None if cls is None else classes.rebuild(cls, state)


def _tensor(data: Encoded, source: _Source) -> Any:
    keras = sys.modules.get("keras")
    dtype, content = _pair(data)
    array = source.decode(content)
    if type(array) is not np.ndarray or not isinstance(dtype, str):
        raise ValueError("a tensor of no array")
    if keras is None:
        if source.known is None:  # just looking does not load Keras
            return array
        raise LookupError("a tensor cannot be decoded before Keras is imported")
    standard = keras.backend.standardize_dtype(dtype)
    return (
        array
        if source.known is None
        else keras.ops.convert_to_tensor(array, dtype=standard)
    )


def _reference(data: Encoded, source: _Source) -> Any:
    if not isinstance(data, str):
        raise ValueError("a reference is not a text")
    if source.known is None:
        return None
    if not source.refers:
        raise ValueError("a reference where none may be")
    return Reference(data)


_BUILDERS: dict[str, Callable[[Encoded, _Source], Any]] = {
    "ref": _reference,
    "int": _int,
    "float": _float,
    "str": _str,
    "bytes": _bytes,
    "list": _list,
    "dict": _dict,
    "array": _array,
    "scalar": _scalar,
    "objects": _objects,
    "dtype": _dtype,
    "import": _import,
    "enum": _enum,
    "namedtuple": _namedtuple,
    "object": _object,
    "tensor": _tensor,
}
