"""Host arrays, of which every backend's snapshot consists, and what is refused.

Numbers and booleans are stored, byte for byte. Text, Python objects, dates and sub-byte
types are refused by name before anything is written: not every format can hold them,
and none may hold an approximation.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from resilient.errors import CheckpointMismatchError, NotSupportedError

# numpy itself does not know these; ml_dtypes registers them under their names.
EXTENSION_DTYPES: Mapping[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}

DTYPES = frozenset(EXTENSION_DTYPES) | {
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
    *("complex64", "complex128"),
}

# Of a tensor. No dots alone: some formats make a directory of it.
_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9_.-]+")


def check_stored(dtypes: Mapping[str, object]) -> None:
    """Refuse tensors that some format or file system cannot hold.

    Args:
        dtypes: By the tensor's name.

    Raises:
        NotSupportedError: A name has other characters than ``[A-Za-z0-9_.-]``, or a
            dtype is not of numbers or booleans.
    """
    for name, dtype in dtypes.items():
        if not _NAME.fullmatch(name):
            raise NotSupportedError(
                "A tensor's name has characters that not every file format can store.",
                received=repr(name),
                hint="Use only letters, digits, '_', '-' and '.'.",
            )
        check_dtype(name, dtype)


@lru_cache  # NumPy makes it anew each time, in Python
def dtype_name(dtype: object) -> str:
    """What ``str`` makes of a dtype."""
    return str(dtype)


def check_dtype(name: str, dtype: object) -> None:
    """Refuse a tensor that cannot be stored byte for byte on every backend.

    Raises:
        NotSupportedError: ``dtype`` (or its name) is not of numbers or booleans.
    """
    if dtype_name(dtype) not in DTYPES:
        raise NotSupportedError(
            f"The tensor {name!r} has a dtype that a checkpoint cannot hold.",
            received=f"dtype {dtype}",
            hint=f"Use one of {', '.join(sorted(DTYPES))}.",
        )


def not_stored(name: str, kind: str, advice: str = "") -> NotSupportedError:
    """The error for a tensor of a kind that a checkpoint cannot hold."""
    return NotSupportedError(
        f"The tensor {name!r} has a type that a checkpoint cannot hold.",
        received=kind,
        hint="Use dense tensors, variables and arrays of numbers or booleans. "
        f"{advice}".rstrip(),
    )


def as_stored(name: str, value: np.ndarray) -> np.ndarray:
    """Return ``value`` in C order and the machine's byte order; copied if it is not.

    Raises:
        NotSupportedError: Its dtype cannot be stored.
    """
    native = value.dtype.newbyteorder("=")
    check_dtype(name, native)
    return value.astype(native, order="C", subok=False, copy=False)


def copy_array(name: str, value: np.ndarray) -> np.ndarray:
    """Return a copy of ``value`` in C order and the machine's byte order."""
    stored = as_stored(name, value)
    return stored.copy() if np.may_share_memory(stored, value) else stored


def spread_elements(arrays: Iterable[np.ndarray], most: int) -> list[np.ndarray]:
    """Copies of at most about so many elements each, spread over arrays."""
    return [array.flat[:: max(1, array.size // most)] for array in arrays]


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of an array in C order, flat; copied only if they are in another."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def check_like(
    target: object, shape: Iterable[int], dtype: object, value: np.ndarray
) -> None:
    """Check that ``value`` needs neither a cast nor a broadcast.

    Callers compare all shapes and dtypes before they set the first one. This is the
    last line of defence: every backend's own assignment casts or broadcasts silently.

    Raises:
        CheckpointMismatchError: Shape or dtype differ.
    """
    if value.shape != tuple(shape) or dtype_name(value.dtype) != str(dtype):
        name = getattr(target, "path", None) or getattr(target, "name", None)
        raise CheckpointMismatchError(
            f"The saved tensor does not fit {name or type(target).__name__}, which"
            f" has shape {tuple(shape)} and dtype {dtype}.",
            received=f"shape {value.shape} and dtype {value.dtype}",
            hint="Restore into the model that was saved.",
        )
