"""NumPy arrays inside JSON values: dtype, shape, memory order and bytes.

Small arrays are base64 text, larger ones references into a mapping of named arrays.
There, dtypes that a backend's format may not know (big-endian, text, structured ...)
are plain bytes. Refuses, with ``ValueError``, dtypes that their description does not
reproduce.
"""

import ast
import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient.backends.arrays import DTYPES, as_bytes

INLINE_BYTES = 1024
_REGISTERED = 2  # in NumPy's words, a dtype of another library


def encode_dtype(dtype: np.dtype[Any]) -> str:
    """Describe a dtype by its name, or as in the header of an ``.npy`` file."""
    if dtype.isbuiltin == _REGISTERED:
        name: str = dtype.name  # bfloat16 and its like have no other description
    else:
        descr = np.lib.format.dtype_to_descr(dtype)
        name = descr if isinstance(descr, str) else repr(descr)
    if decode_dtype(name) != dtype:
        raise ValueError(f"dtype {dtype} has no exact description")
    return name


def decode_dtype(name: str) -> np.dtype[Any]:
    """The dtype that ``encode_dtype`` described.

    Raises:
        ValueError: It is one of Python objects; bytes would become their addresses.
    """
    if name[0] in "[(":
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(name))
    else:
        dtype = np.dtype(name)
    if dtype.hasobject:
        raise ValueError(f"{name} is a dtype of Python objects")
    return dtype


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


def decode_array(content: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """A new, writable array, as it was encoded.

    Raises:
        LookupError: It refers to an array that is not in ``arrays``.
    """
    if "base64" in content:
        raw: Any = base64.b64decode(content["base64"])
    elif content["array"] in arrays:
        raw = as_bytes(np.asarray(arrays[content["array"]]))
    else:
        raise LookupError(f"the array {content['array']!r} is missing")
    dtype, order = decode_dtype(content["dtype"]), content.get("order", "C")
    return np.ndarray(content["shape"], dtype, raw, order=order).copy("K")
