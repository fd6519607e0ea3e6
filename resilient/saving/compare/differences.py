"""Where two arrays, or two other values, differ, and by how much.

Arrays are compared byte by byte: 0.0 is not -0.0, and NaNs may differ in their bits.
Other values are compared as the JSON that checkpoints hold, and nothing is decoded into
objects: a user's object stays its name and its contents.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient.serialization import Encoded
from resilient.serialization.decoding import outline
from resilient.serialization.json_arrays import as_bytes, decode_array

PIECE = 1 << 20  # elements compared at a time, so memory stays small
ABSENT = object()  # in place of a value that only the other side has
_LONGEST = 200  # characters in a value

Arrays = Mapping[str, Any]
Place = tuple[str, Any, Any]  # its name, and both values there


def differing(a: np.ndarray, b: np.ndarray) -> tuple[int, float]:
    """How many elements differ in any bit, and the largest absolute difference.

    The largest is NaN if one of them is no number, and 0.0 if only the signs of zeros
    differ. It may be rounded, of integers beyond 2**53.

    Args:
        a: An array.
        b: Another one, of the same dtype and shape.
    """
    count, largest = 0, np.longdouble(0)
    a, b = (np.ascontiguousarray(each).reshape(-1) for each in (a, b))
    for start in range(0, len(a) if a.itemsize else 0, PIECE):
        one, other = a[start : start + PIECE], b[start : start + PIECE]
        unlike = as_bytes(one) != as_bytes(other)
        differ = unlike.reshape(len(one), -1).any(axis=1)
        count += int(differ.sum())
        largest = np.maximum(largest, _largest(one[differ], other[differ]))
    return count, float(largest)


def _largest(a: np.ndarray, b: np.ndarray) -> Any:
    kind = a.dtype.kind
    if kind not in "biufc" and "float" not in a.dtype.name:  # ml_dtypes' are void
        return np.nan
    wide = np.clongdouble if kind == "c" else np.longdouble
    with np.errstate(all="ignore"):
        return np.abs(a.astype(wide) - b.astype(wide)).max(initial=0)


def places(
    name: str, a: Encoded, b: Encoded, arrays: tuple[Arrays, Arrays]
) -> Iterator[Place]:
    """Every place where two values differ or both have an array, in order.

    Args:
        name: The values' own place; the names of nested places begin with it.
        a: The first value.
        b: The second value.
        arrays: The larger arrays of each.
    """
    kind, one = parts(a, arrays[0])
    other_kind, other = parts(b, arrays[1])
    if kind == other_kind and isinstance(one, np.ndarray):
        yield name, one, other
    elif kind == other_kind and isinstance(one, dict) and isinstance(other, dict):
        if kind == "dict" and [*one] != [*other] and one.keys() == other.keys():
            yield f"{name} (order of keys)", [*one], [*other]
        for key in one | other:
            dot = "." if name and key and not key.startswith("[") else ""
            pair = one.get(key, ABSENT), other.get(key, ABSENT)
            yield from places(f"{name}{dot}{key}", *pair, arrays)
    elif repr(a) != repr(b):  # 1 is not 1.0, nor 0.0 -0.0
        yield name, a, b


def parts(value: Encoded, arrays: Arrays) -> tuple[str, Any]:
    """The kind of a value, and its array or its parts by name, if it has any."""
    if isinstance(value, list):
        return "items", {f"[{index}]": item for index, item in enumerate(value)}
    if not isinstance(value, dict):
        return "plain", None
    if value.keys() != {"!", "v"}:
        return "object", value
    tag, content = value["!"], value["v"]
    if tag in ("array", "scalar"):
        return tag, decode_array(content, arrays)
    if tag != "dict":
        return tag, parts(content, arrays)[1]
    names = (key if isinstance(key, str) else f"[{shown(key)}]" for key, _ in content)
    items = dict(zip(names, (item for _, item in content), strict=True))
    return tag, items if len(items) == len(content) else None


def shown(value: Any) -> str | None:
    """A value as a short text; None if it is absent."""
    if value is ABSENT:
        return None
    if isinstance(value, np.ndarray):
        return f"({', '.join(map(str, value.shape))}) {value.dtype}"
    if isinstance(value, dict) and value.keys() == {"!", "v"}:
        # Of an integer that is too long for JSON, the digits are hexadecimal.
        plain = value["!"] in ("float", "str")
        value = outline(value, {}) if plain else value["v"]
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
