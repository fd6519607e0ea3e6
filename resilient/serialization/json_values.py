"""Encodes Python values as JSON; ``decoding`` restores the same types and bits.

JSON's own types stand for themselves, everything else is ``{"!": tag, "v": ...}``.
Arrays above ``json_arrays.INLINE_BYTES`` go by reference into a mapping of named
arrays, which the backend writes beside the JSON. Those arrays are not copied: write or
copy them before training goes on.

``NotEncodable``, which says where, refuses values that contain themselves, types that
are neither known here nor user-defined plain classes, and classes and functions that
``known`` does not admit. An object that is reachable twice inside one value decodes as
two equal objects.
"""

import base64
import enum
import math
import re
import struct
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded, classes, json_arrays, json_types
from resilient.serialization.classes import NOTHING, Known

# Given a value and its path: how to refer to it, if it is not encoded as it is.
Refer = Callable[[Any, str], str | None]

_PACK_LENGTH = 64  # longer lists of only floats or only ints are kept as one array
_EXACT_INT = 2**53  # beyond this some JSON tools round
_DEPTH = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class NotEncodable(TypeError):
    """A value that JSON cannot hold exactly.

    Attributes:
        path: Its place in the encoded value, such as ``"losses[3]"``.
        value: What was refused.
    """

    def __init__(self, path: str, value: object, why: str = "") -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        super().__init__(f"{path} cannot be saved as JSON: {why or 'type ' + kind}")
        self.path = path
        self.value = value


class NotAdmitted(NotEncodable):
    """A value refers to a class or function that was not there before."""


def _suffix(name: str) -> str:
    return "." + _UNSAFE.sub("_", name)[:64] if name else ""


class _Place(NamedTuple):
    """A place in a value: for messages, for names of arrays, and to detect cycles."""

    arrays: dict[str, np.ndarray]
    path: str
    name: str
    around: frozenset[int]
    known: Known
    reads: bool = True  # what is in arrays
    refer: Refer | None = None

    def inside(self, value: object) -> "_Place":
        """The same place, around which there is one more value."""
        if id(value) in self.around:
            raise NotEncodable(self.path, value, "it contains itself")
        if len(self.around) >= _DEPTH:
            raise NotEncodable(self.path, value, f"it is nested over {_DEPTH} deep")
        return self._replace(around=self.around | {id(value)})

    def at(self, path: str, name: str) -> "_Place":
        """A place in the innermost value."""
        path, name = self.path + path, self.name + _suffix(name)
        return _Place(
            *(self.arrays, path, name, self.around, self.known, self.reads, self.refer)
        )


def encode_part(
    value: Any,
    arrays: dict[str, np.ndarray],
    refer: Refer,
    *,
    name: str,
    path: str,
    known: Known,
    whole: bool = False,
) -> Encoded:
    """Encode what an object holds, with references to other objects.

    Args:
        value: Anything.
        arrays: As for ``encode``.
        refer: Given a value and its path, returns how to refer to it, or None if it is
            to be encoded as it is; may raise NotEncodable.
        name: As for ``encode``.
        path: For messages.
        known: What it may refer to beside that.
        whole: Whether the value itself is encoded in any case.

    Raises:
        NotEncodable: As ``encode``.
    """
    around = frozenset[int]() if whole else frozenset({0})  # it is inside something
    return _encode(value, _Place(arrays, path, name, around, known, True, refer))


def encode(
    value: Any, arrays: dict[str, np.ndarray], name: str, known: Known = NOTHING
) -> Encoded:
    """Encode a value.

    Args:
        value: Anything.
        arrays: Receives the larger arrays, under names that begin with ``name``.
        name: Letters, digits, ``_``, ``-`` and ``.``; paths in messages begin with it.
        known: What it may refer to; decoding needs an equal one.

    Raises:
        NotEncodable: Some part of the value cannot be encoded.
    """
    return _encode(value, _Place(arrays, name, name, frozenset(), known))


def learn(value: Any, known: Known) -> None:
    """Make ``known`` admit what a value refers to, without reading arrays.

    Raises:
        NotEncodable: As ``encode``; what came before is known.
    """
    _encode(value, _Place({}, "value", "value", frozenset(), known, reads=False))


def _tagged(tag: str, content: Encoded) -> Encoded:
    return {"!": tag, "v": content}


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _encode(value: Any, place: _Place) -> Encoded:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int and value.bit_length() > json_types.INT_BITS:
        why = f"an int of more than {json_types.INT_BITS:,} bits"
        raise NotEncodable(place.path, value, why)
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if place.refer is not None and place.around:
        found = place.refer(value, place.path)
        if found is not None:
            return _tagged("ref", found)
    if kind is list:
        return _encode_list(value, place)
    if kind is dict:
        return _tagged("dict", _encode_pairs(value, place))
    if kind is np.ndarray or isinstance(value, np.generic):
        return _encode_array(value, place)
    if kind in json_types.BY_TYPE:
        codec = json_types.BY_TYPE[kind]
        parts = _encode_items(codec.parts(value), value, place)
        if kind in (set, frozenset):
            parts.sort(key=str)  # iteration order differs by process
        return _tagged(codec.tag, parts)
    return _encode_other(value, place)


def _encode_int(value: int) -> Encoded:
    return value if abs(value) < _EXACT_INT else _tagged("int", hex(value))


def _encode_float(value: float) -> Encoded:
    if math.isfinite(value):
        return value  # JSON keeps the shortest text that reads back the same, and -0.0
    return _tagged("float", struct.pack("<d", value).hex())


def _encode_str(value: str) -> Encoded:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # JSON would join or refuse lone surrogates
        return _tagged("str", _text(value.encode("utf-32-le", "surrogatepass")))
    return value


_SCALARS: dict[type, Callable[[Any], Encoded]] = {
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda value: _tagged("bytes", _text(value)),
}


# What needs no place: it is never refused, and nothing is in it.
_SIMPLE: dict[type, Callable[[Any], Encoded]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    float: _encode_float,
    str: _encode_str,
}


def _encode_items(items: list[Any], owner: Any, place: _Place) -> list[Encoded]:
    if not items:
        return []
    inner = place.inside(owner)
    return [
        _SIMPLE[type(item)](item)
        if type(item) in _SIMPLE
        else _encode(item, inner.at(f"[{index}]", str(index)))
        for index, item in enumerate(items)
    ]


def _encode_list(value: list[Any], place: _Place) -> Encoded:
    if len(value) > _PACK_LENGTH:
        kinds = set(map(type, value))
        if kinds == {float}:
            return _tagged("list", _encode_array(np.array(value, np.float64), place))
        if kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63:
            return _tagged("list", _encode_array(np.array(value, np.int64), place))
    return _encode_items(value, value, place)


def _encode_pairs(value: dict[Any, Any], place: _Place) -> list[Encoded]:
    pairs: list[Encoded] = []
    inner = place.inside(value) if value else place
    for index, (key, item) in enumerate(value.items()):
        if type(key) is str and type(item) in _SIMPLE:
            pairs.append([_encode_str(key), _SIMPLE[type(item)](item)])
            continue
        name = key if isinstance(key, str) else str(index)
        here = inner.at(f"[{key!r}]", name)
        pairs.append([_encode(key, here), _encode(item, here)])
    return pairs


def _encode_array(value: Any, place: _Place) -> Encoded:
    if value.dtype.hasobject:
        if isinstance(value, np.generic):
            raise NotEncodable(place.path, value)
        items = _encode_items(value.ravel().tolist(), value, place)
        return _tagged("objects", [list(value.shape), items])
    if not place.reads:
        return None
    name, number = place.name, 2
    while name in place.arrays:
        name, number = f"{place.name}-{number}", number + 1
    try:
        content = json_arrays.encode_array(value, place.arrays, name)
    except ValueError as error:
        raise NotEncodable(place.path, value, str(error)) from error
    return _tagged("array" if isinstance(value, np.ndarray) else "scalar", content)


def _encode_other(value: Any, place: _Place) -> Encoded:
    if isinstance(value, np.dtype):
        return _tagged("dtype", json_arrays.encode_dtype(value))
    if isinstance(value, enum.Enum):
        return _encode_instance("enum", value, value._value_, place)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _encode_instance("namedtuple", value, list(value), place)
    if classes.reference(value) is not None:
        return _tagged("import", _name(value, value, place))
    if classes.is_plain(type(value)):
        return _encode_instance("object", value, classes.attributes(value), place)
    return _encode_tensor(value, place)


def _encode_instance(tag: str, value: Any, state: Any, place: _Place) -> Encoded:
    name = _name(type(value), value, place)
    return _tagged(tag, [name, _encode(state, place.inside(value))])


def _name(thing: Any, value: Any, place: _Place) -> str:
    """The name of a class or function that a value at this place refers to."""
    name = classes.reference(thing)
    if name is None:
        raise NotEncodable(place.path, value)
    if not place.known.admits(name, thing):
        what = f"{name} was not there when training began"
        raise NotAdmitted(place.path, value, what)
    return name


def _encode_tensor(value: Any, place: _Place) -> Encoded:
    keras = sys.modules.get("keras")
    if keras is None or not keras.ops.is_tensor(value) or hasattr(value, "assign"):
        raise NotEncodable(place.path, value)  # a variable is more than its tensor
    if not place.reads:
        return None
    try:
        with warnings.catch_warnings():
            # Keras's own, of tensors of torch under numpy 2.4.
            warnings.simplefilter("ignore", DeprecationWarning)
            array = np.asarray(keras.ops.convert_to_numpy(value))
    except Exception as error:  # symbolic tensors, PRNG keys: each backend its own
        raise NotEncodable(place.path, value) from error
    dtype = keras.backend.standardize_dtype(value.dtype)
    return _tagged("tensor", [dtype, _encode_array(array, place)])
