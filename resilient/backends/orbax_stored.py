"""A tensor of an Orbax checkpoint, read slice by slice as devices need it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends.paths import plain

# Nobody writes to the files of a checkpoint.
MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})
_ALIGNMENT = 64  # bytes; less, and JAX copies


class StoredArray:
    """An array that is still on the disk.

    Args:
        directory: Of the checkpoint.
        spec: Where TensorStore finds the array, given a plain path of ``directory``.
        shape: As it was saved.
        dtype: As it was saved.
    """

    def __init__(
        self,
        directory: str,
        spec: Callable[[str], dict[str, Any]],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._directory, self._spec = directory, spec

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """The elements in ``index``, read-only, in memory that JAX need not copy.

        Args:
            index: A slice without a step for each dimension.
        """
        with plain(self._directory) as path:
            stored = ts.open(self._spec(path), open=True, context=MAPPED).result()
            part = stored[index][ts.d[:].translate_to[0]]
            array = aligned(part.shape, self.dtype)
            ts.array(array).write(part).result()
        array.flags.writeable = False
        return array

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """All of it, read again each time."""
        whole = self.read((slice(None),) * len(self.shape))
        return whole if dtype is None else whole.astype(dtype, copy=False)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that JAX need not copy, in NumPy's large pages."""
    nbytes = dtype.itemsize * math.prod(shape)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(shape)
