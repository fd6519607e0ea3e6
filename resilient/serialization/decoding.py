"""Decodes JSON into Python values, by the closed table of ``json_types``.

Each codec builds one type from parts whose types were checked. Nothing is looked up,
imported or called by a name in the data: classes and functions are chosen among those
in ``known``. Nothing is allocated before its size is compared with the available bytes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded, json_arrays
from resilient.serialization.classes import NOTHING, Known
from resilient.serialization.json_classes import BY_TAG
from resilient.serialization.schema import taking

_DEPTH = 500  # of JSON; ``encode`` stays below it


class Reference(NamedTuple):
    """Stands for another object that was saved, by its home."""

    home: str


class _Source(NamedTuple):
    """The source for decoding a value.

    Attributes:
        arrays: The larger arrays.
        known: What it may refer to; None for an outline.
        refers: Whether it may refer to other objects.
        depth: The depth of the value.
    """

    arrays: Mapping[str, np.ndarray]
    known: Known | None
    refers: bool = False
    depth: int = 0

    def decode(self, data: Encoded) -> Any:
        if not isinstance(data, list | dict):
            return data
        if self.depth > _DEPTH:
            raise ValueError("nested too deep")
        inner = self._replace(depth=self.depth + 1)
        if isinstance(data, list):
            return [inner.decode(item) for item in data]
        if data.keys() != {"!", "v"}:
            raise ValueError("an object without a tag")
        tag, content = data["!"], data["v"]
        if tag == "array":
            outline = self.known is None
            return json_arrays.decode_array(content, self.arrays, outline=outline)
        if tag == "ref":
            return self._reference(content)
        codec = BY_TAG.get(tag)
        if codec is None:
            raise ValueError(f"unknown tag {tag!r}")
        if not isinstance(content, list):
            if codec.takes is None:
                raise ValueError(f"no list of the parts of {tag}")
            content = [content]
        parts = [inner.decode(part) for part in content]
        codec.check(parts)
        if not codec.live:
            return codec.build(*parts)
        return None if self.known is None else codec.build(self.known, *parts)

    def _reference(self, home: Encoded) -> Reference | None:
        if not isinstance(home, str):
            raise ValueError("a reference is not a text")
        if self.known is None:
            return None
        if not self.refers:
            raise ValueError("a reference where none may be")
        return Reference(home)


def decode(
    data: Encoded,
    arrays: Mapping[str, np.ndarray],
    known: Known = NOTHING,
    *,
    refers: bool = False,
) -> Any:
    """Decode what ``encode`` returned into new objects that share nothing.

    Args:
        data: Any JSON, from a checkpoint.
        arrays: The larger arrays.
        known: What it may refer to.
        refers: Whether it may have a ``Reference`` to other objects.

    Raises:
        NotKnownError: It refers to any other class or function.
        MalformedError: It is not what ``encode`` returned, or an array is missing.
    """
    with taking("a value"):
        return _Source(arrays, known, refers).decode(data)


def outline(data: Encoded, arrays: Mapping[str, np.ndarray]) -> Any:
    """The same without the content of arrays, and with None for the script's objects.

    Raises:
        MalformedError: As ``decode``.
    """
    with taking("a value"):
        return _Source(arrays, None).decode(data)


class _Once(dict[str, Any]):
    """Arrays of which each is referred to once; an array is copied each time."""

    def __getitem__(self, name: str) -> Any:
        return self.pop(name)


def check(data: Encoded, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise unless every encoded value in some JSON is well-formed.

    Args:
        data: Any JSON, with encoded values anywhere in it.
        arrays: The larger arrays.

    Raises:
        MalformedError: One is not, or an array is missing, or referred to twice: the
            values would be far larger than they are.
    """
    _check(data, _Once(arrays))


def _check(data: Encoded, arrays: _Once) -> None:
    if isinstance(data, dict) and data.keys() == {"!", "v"}:
        outline(data, arrays)
    elif isinstance(data, list | dict):
        for item in data.values() if isinstance(data, dict) else data:
            _check(item, arrays)
