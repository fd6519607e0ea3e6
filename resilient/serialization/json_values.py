"""Encodes Python values as JSON, and decodes it into the same types and bits.

JSON's own types stand for themselves, everything else is ``{"!": tag, "v": ...}``, of
the tags in ``json_types``. Arrays above ``json_arrays.INLINE_BYTES`` go by reference
into a mapping of named arrays, which the backend writes beside the JSON. Those arrays
are not copied: write or copy them before training goes on.

``NotEncodable``, which says where, refuses values that contain themselves, types that
are neither in the table nor user-defined plain classes, and classes and functions that
``known`` does not admit. An object that is reachable twice inside one value decodes as
two equal objects.

Nothing is looked up, imported or called by a name in the data: the table is closed, and
classes and functions are chosen among those in ``known``.
"""

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded, classes, json_arrays
from resilient.serialization.classes import NOTHING, Known
from resilient.serialization.json_types import (
    BY_TAG,
    BY_TYPE,
    DICT,
    LIST,
    TENSOR,
    find_codec,
)
from resilient.serialization.schema import taking

# Given a value and its path: how to refer to it, if it is not encoded as it is.
Refer = Callable[[Any, str], str | None]

_PACK_LENGTH = 64  # longer lists of only floats or only ints are kept as one array
_DEPTH = 100
_EXACT_INT = 2**53  # beyond this some JSON tools round
_SURROGATE = re.compile("[\ud800-\udfff]")  # which JSON would join or refuse
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


class Reference(NamedTuple):
    """Stands for another object that was saved, by its home."""

    home: str


def key_path(key: Any, index: int) -> str:
    """The place of the item of a key, in a path; of a key without a text, its index."""
    with contextlib.suppress(Exception):  # such as of an int of 4,301 digits
        return f"[{key!r}]"
    return f"[{index}]"


def has_order(value: Any) -> bool:
    """Whether each process hashes the items of a set or tuple alike.

    Strings only with ``PYTHONHASHSEED``.
    """
    if isinstance(value, tuple | set | frozenset):
        return all(map(has_order, value))
    return isinstance(value, int | float) or not sys.flags.hash_randomization


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
    place = _Place(arrays, path or name, name, frozenset(), known, refer)
    return place.whole(value) if whole else place.encode(value)


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
        return _decode(data, arrays, known)


def _decode(data: Encoded, arrays: Mapping[str, np.ndarray], known: Known) -> Any:
    if isinstance(data, list):
        return [_decode(item, arrays, known) for item in data]
    if not isinstance(data, dict):
        return data
    tag, content = data["!"], data["v"]
    if tag == "array":
        return json_arrays.decode_array(content, arrays)
    if tag == "import":
        return known.named(content)
    if tag == "ref":
        return Reference(content)
    codec = BY_TAG[tag]
    if codec.of_class:
        name, content = content
        return codec.build(known.named(name), _decode(content, arrays, known))
    return codec.build(_decode(content, arrays, known))


def _tagged(tag: str, content: Encoded) -> Encoded:
    return {"!": tag, "v": content}


def _is_plain(value: Any) -> bool:
    """Whether JSON holds a value exactly, as it is."""
    cls = type(value)
    if cls is str:
        return not _SURROGATE.search(value)
    if cls is int:
        return bool(abs(value) < _EXACT_INT)
    # As the shortest text that reads back the same, and -0.0.
    return value is None or cls is bool or (cls is float and math.isfinite(value))


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

    def encode(self, value: Any) -> Encoded:
        """A value, or a reference to it."""
        if self.refer is not None and not _is_plain(value):
            found = self.refer(value, self.path)
            if found is not None:
                return _tagged("ref", found)
        return self.whole(value)

    def whole(self, value: Any) -> Encoded:
        """A value, and never a reference to it."""
        if _is_plain(value):
            return value
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return self.array(value)
        if callable(value) and classes.reference(value) is not None:
            return _tagged("import", self.admitted(value, value))
        inner = self.inside(value)
        if type(value) is list and not _is_packed(value):
            return inner.items(value)
        if type(value) is dict:
            return _tagged(DICT.tag, inner.pairs(value))
        codec = LIST if type(value) is list else BY_TYPE.get(type(value))
        codec = codec or find_codec(value)
        if codec is None:
            raise NotEncodable(self.path, value)
        if codec is TENSOR and self.arrays is None:
            return None
        try:
            simpler = codec.reduce(value)
        except ValueError as error:
            raise NotEncodable(self.path, value, str(error)) from error
        if isinstance(simpler, tuple):
            content = [inner.whole(part) for part in simpler]
        elif isinstance(simpler, list):
            content = inner.items(simpler)
        else:
            content = inner.whole(simpler)
        if isinstance(value, set | frozenset) and not has_order(value):
            content.sort(key=str)
        if codec.of_class:
            content = [self.admitted(type(value), value), content]
        return _tagged(codec.tag, content)

    def items(self, items: Iterable[Any]) -> list[Encoded]:
        """The items of the innermost value."""
        return [
            item if _is_plain(item) else self.at(f"[{index}]", str(index)).encode(item)
            for index, item in enumerate(items)
        ]

    def pairs(self, value: dict[Any, Any]) -> list[Encoded]:
        """The keys and items of the innermost value."""
        pairs: list[Encoded] = []
        for index, (key, item) in enumerate(value.items()):
            if type(key) is str and _is_plain(key) and _is_plain(item):
                pairs.append([key, item])
                continue
            name = key if isinstance(key, str) else str(index)
            here = self.at(key_path(key, index), name)
            pairs.append([here.encode(key), here.encode(item)])
        return pairs

    def admitted(self, thing: Any, value: Any) -> str:
        """The name of a class or function that a value at this place refers to."""
        name = classes.reference(thing)
        if name is None:
            raise NotEncodable(self.path, value)
        if not self.known.admits(name, thing):
            what = f"{name} was not there when training began"
            raise NotEncodable(self.path, value, what)
        return name

    def array(self, value: np.ndarray) -> Encoded:
        """An array without Python objects."""
        if self.arrays is None:
            return None
        name, number = self.name, 2
        while name in self.arrays:
            name, number = f"{self.name}-{number}", number + 1
        try:
            content = json_arrays.encode_array(value, self.arrays, name)
        except ValueError as error:
            raise NotEncodable(self.path, value, str(error)) from error
        return _tagged("array", content)


def _is_packed(value: list[Any]) -> bool:
    """Whether a list is kept as one array."""
    kinds = set(map(type, value)) if len(value) > _PACK_LENGTH else set()
    few = kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63
    return few or kinds == {float}
