"""NumPy arrays inside JSON values: dtype, shape, memory order and bytes.

Small arrays are base64 text, larger ones references into a mapping of named arrays.
There, dtypes that a backend's format may not know (big-endian, text, structured ...)
are plain bytes. Refuses, with ``ValueError``, dtypes that their description does not
reproduce.
"""

import ast
import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient.backends.arrays import DTYPES, as_bytes

INLINE_BYTES = 1024
_REGISTERED = 2  # in NumPy's words, a dtype of another library
_LONGEST_DTYPE = 1 << 16  # characters
_DIMENSIONS = 64  # the most that NumPy has
_EMPTY_ITEMS = 1 << 20  # of an array whose items have no bytes: any number has as many


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """Describe a dtype by its name, or as in the header of an ``.npy`` file."""
    if dtype.isbuiltin == _REGISTERED:
        name: str = dtype.name  # bfloat16 and its like have no other description
    else:
        descr = np.lib.format.dtype_to_descr(dtype)
        name = descr if isinstance(descr, str) else repr(descr)
    if dtype.hasobject or decode_dtype(name) != dtype:
        raise ValueError(f"dtype {dtype} has no exact description")
    return name


def decode_dtype(name: object) -> np.dtype[Any]:
    """The dtype that ``encode_dtype`` described.

    Raises:
        ValueError: It is none, or one of Python objects.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_DTYPE:
        raise ValueError("not the description of a dtype")
    try:
        if name[0] in "[(":
            dtype = np.lib.format.descr_to_dtype(ast.literal_eval(name))
        else:
            dtype = np.dtype(name)
    except Exception as error:  # NumPy and Python have a dozen for this
        raise ValueError(f"{name[:100]!r} describes no dtype") from error
    if dtype.hasobject:
        raise ValueError(f"{name[:100]!r} is a dtype of Python objects")
    return dtype


def checked_shape(shape: object) -> tuple[int, ...]:
    """The shape of an array in JSON.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(shape, list) or len(shape) > _DIMENSIONS:
        raise ValueError("not a shape")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError("not a shape")
    return tuple(shape)


def _check_items(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not dtype.itemsize and math.prod(shape) > _EMPTY_ITEMS:
        raise ValueError(f"{math.prod(shape):,} items of no bytes")


def encode_array(
    value: np.ndarray | np.generic, arrays: dict[str, np.ndarray], name: str
) -> dict[str, Any]:
    """Describe an array without Python objects in it; a larger one joins ``arrays``.

    Args:
        value: An array or a NumPy scalar; not copied if memory order allows.
        arrays: Receives it under ``name`` if it is larger than ``INLINE_BYTES``.
        name: Not used there yet.
    """
    array = np.asarray(value)
    _check_items(array.shape, array.dtype)
    content: dict[str, Any] = {
        "dtype": encode_dtype(value.dtype),
        "shape": list(array.shape),
    }
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        content["order"] = "F"
        array = array.T
    array = np.ascontiguousarray(array)
    if array.nbytes <= INLINE_BYTES:
        content["base64"] = base64.b64encode(array.tobytes()).decode("ascii")
    else:
        content["array"] = name
        common = array.dtype.isnative and array.dtype.name in DTYPES
        arrays[name] = array if common else as_bytes(array)
    return content


def decode_array(
    content: Any, arrays: Mapping[str, np.ndarray], *, outline: bool = False
) -> np.ndarray:
    """A new, writable array, as it was encoded; an outline is zeros of no memory.

    Raises:
        LookupError: It refers to an array that is not in ``arrays``.
        ValueError: The bytes do not fit its dtype and shape.
    """
    if not isinstance(content, dict):
        raise ValueError("not an array")
    if "base64" in content:
        raw = np.frombuffer(base64.b64decode(content["base64"]), np.uint8)
    elif content["array"] in arrays:
        raw = np.asarray(arrays[content["array"]])
    else:
        raise LookupError(f"the array {content['array']!r} is missing")
    shape, dtype = checked_shape(content["shape"]), decode_dtype(content["dtype"])
    _check_items(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes != raw.nbytes:
        raise ValueError(f"{raw.nbytes} bytes where {nbytes} are expected")
    if outline:
        return np.broadcast_to(np.zeros((), dtype), shape)
    turned = content.get("order") == "F"
    built = np.empty(shape[::-1] if turned else shape, dtype)
    if nbytes:
        as_bytes(built)[:] = as_bytes(raw)
    return built.T if turned else built
