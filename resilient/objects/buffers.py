"""Reads and writes in place objects that hold plain content.

These are open readable files (their position; for in-memory files also the content),
``array.array``, shared values of ``multiprocessing``, and subclasses of NumPy arrays,
including masked arrays.
"""

import array
import contextlib
import ctypes
import io
from typing import Any, NamedTuple

import numpy as np

_IN_MEMORY = (io.BytesIO, io.StringIO)
_NUMBERS = frozenset("cbBhHiIlLqQfd?")  # ctypes type codes without pointers


class HeldBuffer(NamedTuple):
    """The kind of an object, and its content."""

    kind: str
    plain: Any


def held(value: Any) -> HeldBuffer | None:
    """The content of such an object, not copied; None for other objects."""
    if isinstance(value, io.IOBase):
        return _file(value)
    if type(value) is array.array:
        known = len(value) > 0 and value.typecode in "bBhHiIlLqQfd"
        data = np.frombuffer(value, value.typecode) if known else None
        return None if data is None else HeldBuffer("array", data)
    if isinstance(value, np.ndarray):
        return _subclass(value)
    shared = _shared(value)
    if shared is None:
        return None
    return HeldBuffer("shared", np.frombuffer(shared, np.uint8))


def write(value: Any, kind: str, plain: Any) -> None:
    """Give an object the content of a similar one.

    Raises:
        ValueError: Its shape or name differs.
        OSError: The file cannot be read there.
    """
    if kind in ("file", "memory"):
        _write_file(value, *plain)
    elif kind == "array":
        if plain.dtype != np.dtype(value.typecode):
            raise ValueError("a different type of numbers")
        value[:] = array.array(value.typecode, plain.tobytes())
    elif kind == "shared":
        np.frombuffer(_shared(value), np.uint8)[...] = plain
    else:
        data, mask = plain
        if data.shape != value.shape or data.dtype.str != value.dtype.str:
            raise ValueError("a different shape or dtype")
        np.ma.getdata(value).view(np.ndarray)[...] = data
        if mask is not None:
            value.mask = mask


def _file(file: Any) -> HeldBuffer | None:
    with contextlib.suppress(Exception):  # closed, a pipe, or being iterated
        if not file.readable() or not file.seekable():
            return None
        # Copied on write.
        if type(file) in _IN_MEMORY:
            return HeldBuffer("memory", ("", file.tell(), file.getvalue()))
        return HeldBuffer("file", (_name(file), file.tell(), None))
    return None


def _name(file: Any) -> str:
    return str(getattr(file, "name", ""))


def _write_file(file: Any, name: str, place: int, content: Any) -> None:
    if name != _name(file):
        raise ValueError("a different file")
    if content is not None:
        if type(file) not in _IN_MEMORY:
            raise ValueError("a file that is not in memory")  # nor ours to overwrite
        file.seek(0)
        file.truncate()
        file.write(content)
    file.seek(place)


def _subclass(value: np.ndarray) -> HeldBuffer | None:
    plain = type(value) is np.ndarray or isinstance(value, np.memmap)
    if plain or value.dtype.hasobject:
        return None
    mask = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
    data = np.ma.getdata(value).view(np.ndarray)
    return HeldBuffer("subclass", (data, mask))


def _shared(value: Any) -> Any:
    """The ctypes number or array in a value, shared between processes or not."""
    inner = value
    if type(value).__module__ == "multiprocessing.sharedctypes":
        inner = value.get_obj() if hasattr(value, "get_obj") else None
    kind: Any = type(inner)
    while isinstance(inner, ctypes.Array) and issubclass(kind, ctypes.Array):
        kind = kind._type_
    code = getattr(kind, "_type_", None)
    known = isinstance(inner, ctypes._SimpleCData | ctypes.Array)
    return inner if known and code in _NUMBERS else None
