"""Encodes Python values as JSON; ``decoding`` restores the same types and bits.

JSON's own types stand for themselves, everything else is ``{"!": tag, "v": ...}``, of
the tags in ``json_types``. Arrays above ``json_arrays.INLINE_BYTES`` go by reference
into a mapping of named arrays, which the backend writes beside the JSON. Those arrays
are not copied: write or copy them before training goes on.

``NotEncodable``, which says where, refuses values that contain themselves, types that
are neither in the table nor user-defined plain classes, and classes and functions that
``known`` does not admit. An object that is reachable twice inside one value decodes as
two equal objects.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded, classes, json_arrays
from resilient.serialization.classes import NOTHING, Known
from resilient.serialization.json_classes import TENSOR, find_codec
from resilient.serialization.json_types import DICT, LIST, PLAIN, Codec

# Given a value and its path: how to refer to it, if it is not encoded as it is.
Refer = Callable[[Any, str], str | None]

_PACK_LENGTH = 64  # longer lists of only floats or only ints are kept as one array
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


class _Place(NamedTuple):
    """A place in a value: for messages, for names of arrays, and to detect cycles."""

    arrays: dict[str, np.ndarray] | None
    path: str
    name: str
    around: frozenset[int]
    known: Known
    refer: Refer | None

    def inside(self, value: object) -> "_Place":
        """The same place, around which there is one more value."""
        if id(value) in self.around:
            raise NotEncodable(self.path, value, "it contains itself")
        if len(self.around) >= _DEPTH:
            raise NotEncodable(self.path, value, f"it is nested over {_DEPTH} deep")
        return self._replace(around=self.around | {id(value)})

    def at(self, path: str, name: str) -> "_Place":
        """A place in the innermost value."""
        suffix = "." + _UNSAFE.sub("_", name)[:64] if name else ""
        return _Place(self.arrays, self.path + path, self.name + suffix, *self[3:])


def key_path(key: Any, index: int) -> str:
    """The place of the item of a key, in a path; of a key without a text, its index."""
    with contextlib.suppress(Exception):  # such as of an int of 4,301 digits
        return f"[{key!r}]"
    return f"[{index}]"


def encode(
    value: Any,
    arrays: dict[str, np.ndarray] | None,
    name: str,
    known: Known = NOTHING,
    *,
    path: str | None = None,
    refer: Refer | None = None,
    whole: bool = True,
) -> Encoded:
    """Encode a value.

    Args:
        value: Anything.
        arrays: Receives the larger arrays, under names that begin with ``name``. None
            to read no array: only ``known`` learns what the value refers to.
        name: Letters, digits, ``_``, ``-`` and ``.``.
        known: What it may refer to; decoding needs an equal one.
        path: Begins the paths in messages, instead of ``name``.
        refer: Given a value inside and its path, returns how to refer to it, or None if
            it is to be encoded as it is; may raise NotEncodable.
        whole: Whether ``refer`` is not asked about the value itself.

    Raises:
        NotEncodable: Some part of the value cannot be encoded.
    """
    around = frozenset[int]() if whole else frozenset({0})  # it is inside something
    return _encode(value, _Place(arrays, path or name, name, around, known, refer))


def _tagged(tag: str, content: Encoded) -> Encoded:
    return {"!": tag, "v": content}


def _is_plain(value: Any) -> bool:
    is_exact = PLAIN.get(type(value))
    return is_exact is not None and is_exact(value)


def _encode(value: Any, place: _Place) -> Encoded:
    if _is_plain(value):
        return value
    if place.refer is not None and place.around:
        found = place.refer(value, place.path)
        if found is not None:
            return _tagged("ref", found)
    return _encode_whole(value, place)


def _encode_whole(value: Any, place: _Place) -> Encoded:
    """Encode a value that is not plain, and never as a reference."""
    if type(value) is list:
        return _encode_list(value, place)
    if type(value) is dict:
        return _tagged(DICT.tag, _encode_pairs(value, place))
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return _encode_array(value, place)
    codec = find_codec(value)
    if codec is None:
        raise NotEncodable(place.path, value)
    if codec is TENSOR and place.arrays is None:
        return None
    return _tagged(codec.tag, _encode_parts(codec, value, place))


def _encode_list(value: list[Any], place: _Place) -> Encoded:
    if len(value) > _PACK_LENGTH:
        kinds = set(map(type, value))
        few = kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63
        if few or kinds == {float}:
            return _tagged(LIST.tag, _encode_parts(LIST, value, place))
    return _encode_items(value, place.inside(value) if value else place)


def _encode_items(items: list[Any], inner: _Place) -> list[Encoded]:
    return [
        item if _is_plain(item) else _encode(item, inner.at(f"[{index}]", str(index)))
        for index, item in enumerate(items)
    ]


def _encode_pairs(value: dict[Any, Any], place: _Place) -> list[Encoded]:
    pairs: list[Encoded] = []
    inner = place.inside(value) if value else place
    for index, (key, item) in enumerate(DICT.parts(value)):
        if type(key) is str and _is_plain(key) and _is_plain(item):
            pairs.append([key, item])
            continue
        name = key if isinstance(key, str) else str(index)
        here = inner.at(key_path(key, index), name)
        pairs.append([_encode(key, here), _encode(item, here)])
    return pairs


def _encode_parts(codec: Codec, value: Any, place: _Place) -> Encoded:
    inner = place.inside(value)
    try:
        parts = codec.parts(value)
    except ValueError as error:
        raise NotEncodable(place.path, value, str(error)) from error
    if codec.takes is None:
        items = _encode_items(parts, inner)
        if isinstance(value, set | frozenset):
            items.sort(key=str)  # iteration order differs by process
        return items
    if codec.live and not isinstance(parts[0], str):
        parts[0] = _name(parts[0], value, place)
    content = [p if _is_plain(p) else _encode_whole(p, inner) for p in parts]
    return content if len(content) > 1 or type(content[0]) is list else content[0]


def _name(thing: Any, value: Any, place: _Place) -> str:
    """The name of a class or function that a value at this place refers to."""
    name = classes.reference(thing)
    if name is None:
        raise NotEncodable(place.path, value)
    if not place.known.admits(name, thing):
        what = f"{name} was not there when training began"
        raise NotEncodable(place.path, value, what)
    return name


def _encode_array(value: np.ndarray, place: _Place) -> Encoded:
    if place.arrays is None:
        return None
    name, number = place.name, 2
    while name in place.arrays:
        name, number = f"{place.name}-{number}", number + 1
    try:
        content = json_arrays.encode_array(value, place.arrays, name)
    except ValueError as error:
        raise NotEncodable(place.path, value, str(error)) from error
    return _tagged("array", content)
