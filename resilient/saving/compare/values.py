"""Finds where two values that checkpoints hold as JSON differ.

Nothing is decoded into objects: a user's object stays its name and its contents. Arrays
are yielded in pairs, to be compared like tensors.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.serialization import JSON, Encoded
from resilient.serialization.decoding import outline
from resilient.serialization.json_arrays import as_bytes, stored_array

_MOST = 100  # differences reported per list or mapping
_LONGEST = 200  # characters in a value
_EXACT = 2**53  # some JSON readers round integers beyond this
_ARRAY = "array"
_ITEMS = ("tuple", "set", "frozenset", "deque")


@dataclass(frozen=True)
class Difference:
    """Two values that differ, or one without a counterpart.

    Attributes:
        name: Its place.
        a: The first value, as short plain JSON.
        b: The second value, in the same form.
        only: ``"a"`` or ``"b"`` if only that side has the value.
    """

    name: str
    a: Any
    b: Any
    only: str | None = None


@dataclass(frozen=True)
class ArrayPair:
    """Two arrays in the same place."""

    name: str
    a: np.ndarray
    b: np.ndarray


class _Nothing:
    """A placeholder for a missing value."""


_NOTHING = _Nothing()
Arrays = Mapping[str, Any]
Found = Difference | ArrayPair


def differences(
    name: str, a: Encoded, b: Encoded, arrays: tuple[Arrays, Arrays]
) -> Iterator[Found]:
    """The differences between two values, in order, and all their arrays.

    Args:
        name: Their place; the names of nested places begin with it.
        a: The first value.
        b: The second value.
        arrays: The larger arrays of each.
    """
    told: dict[str, int] = {}
    left: list[tuple[str, str, Any, Any]] = [("", name, a, b)]
    while left:
        around, here, one, other = left.pop()
        found, inside = _compared(here, one, other, arrays)
        left += reversed([(here, *each) for each in inside])
        if isinstance(found, Difference):
            told[around] = told.get(around, 0) + 1
            if told[around] > _MOST:
                continue
        if found is not None:
            yield found
    for around, count in told.items():
        if count > _MOST:
            what = f"{count - _MOST:,} more that differ"
            yield Difference(f"{around}: and more", what, what)


def _compared(
    name: str, a: Any, b: Any, arrays: tuple[Arrays, Arrays]
) -> tuple[Found | None, Sequence[tuple[str, Any, Any]]]:
    """How two values themselves differ, and what they contain."""
    if a is _NOTHING or b is _NOTHING:
        only = "b" if a is _NOTHING else "a"
        one, other = (None if x is _NOTHING else shown_as(x) for x in (a, b))
        return Difference(name, one, other, only), ()
    (kind, one), (other_kind, other) = _opened(a), _opened(b)
    if kind != other_kind or kind is None:
        same = kind == other_kind and _same(one, other)
        return None if same else Difference(name, shown_as(a), shown_as(b)), ()
    if kind.startswith(_ARRAY):
        pair = (_array(x, of) for x, of in zip((one, other), arrays, strict=True))
        return ArrayPair(name, *pair), ()
    if isinstance(one, dict):
        ordered = kind == "dict"
        return _order(name, one, other) if ordered else None, _items(name, one, other)
    return None, _rows(name, one, other)


def _items(name: str, a: JSON, b: JSON) -> list[tuple[str, Any, Any]]:
    keys = (*a, *(key for key in b if key not in a))
    return [
        (_inside(name, key), a.get(key, _NOTHING), b.get(key, _NOTHING)) for key in keys
    ]


def _inside(name: str, key: str) -> str:
    dot = "." if name and key and not key.startswith("[") else ""
    return f"{name}{dot}{key}"


def _rows(name: str, a: list[Any], b: list[Any]) -> list[tuple[str, Any, Any]]:
    def row(of: list[Any], index: int) -> Any:
        return of[index] if index < len(of) else _NOTHING

    longer = range(max(len(a), len(b)))
    return [(f"{name}[{i}]", row(a, i), row(b, i)) for i in longer]


def _order(name: str, a: JSON, b: JSON) -> Difference | None:
    """The difference if two mappings have the same keys in another order."""
    if list(a) == list(b) or a.keys() != b.keys():
        return None
    return Difference(f"{name} (order of keys)", *(shown_as(list(x)) for x in (a, b)))


def _opened(value: Encoded) -> tuple[str | None, Any]:
    """The kind of a value (None if it has no parts), and its parts."""
    if isinstance(value, list):
        return "list", value
    if not isinstance(value, dict):
        return None, value
    if value.keys() != {"!", "v"}:
        return "object", value
    tag, content = value["!"], value["v"]
    match tag:
        case "array":
            return _ARRAY, content
        case "list":  # of numbers, kept as an array
            return f"{_ARRAY} of a list", content["v"]
        case "tensor":
            return f"{_ARRAY} of {content[0]}", content[1]["v"]
        case "dict":
            items = {_key(key): item for key, item in content}
            return (tag, items) if len(items) == len(content) else (None, value)
        case "enum" | "namedtuple" | "object":
            return f"{tag} {content[0]}", [content[1]]
    whole = not isinstance(content, list)
    if whole or not any(isinstance(part, list | dict) for part in content):
        return (tag, content) if tag in _ITEMS else (None, value)
    return tag, content


def unpacked(value: Encoded, arrays: Arrays) -> Encoded:
    """The list, if it was stored as an array of numbers; other values as they are."""
    if isinstance(value, dict) and value.get("!") == "list":
        return _array(value["v"]["v"], arrays).tolist()
    return value


def _key(key: Encoded) -> str:
    return key if isinstance(key, str) else f"[{shown_as(key)}]"


def _array(content: Encoded, arrays: Arrays) -> np.ndarray:
    """The encoded array, as a view where possible."""
    stored = stored_array(content, arrays)
    raw = as_bytes(stored.raw)
    shape = stored.shape[::-1] if stored.turned else stored.shape
    array = np.ndarray(shape, stored.dtype, raw if raw.size else bytearray(1))
    return array.T if stored.turned else array


def _same(a: Any, b: Any) -> bool:
    """Whether two values without parts are equal: 1 is not 1.0, nor 0.0 -0.0."""
    return type(a) is type(b) and (a == b if isinstance(a, str) else repr(a) == repr(b))


def shown_as(value: Encoded) -> Any:
    """A value as short plain JSON."""
    if isinstance(value, dict) and value.keys() == {"!", "v"}:
        tag, content = value["!"], value["v"]
        if tag in ("float", "int", "str", "scalar"):
            plain = outline(value, {})
            plain = plain.item() if isinstance(plain, np.generic) else plain
            return plain if _is_json(plain) else _short(str(plain))
        if tag == "array":
            return f"array {tuple(content['shape'])} {content['dtype']}"
        if tag == "list":
            return f"list of {content['v']['shape'][0]:,} numbers"
        value = content
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, dict | list):
        return _short(json.dumps(value, ensure_ascii=False))
    return value if _is_json(value) else str(value)


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < _EXACT)


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}... ({len(text):,} characters)"
