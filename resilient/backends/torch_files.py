"""Reads tensors that ``torch.save`` wrote, without unpickling and without torch.

The file is a zip file of the tensors' bytes (``data/0`` and so on) and of a pickle that
says how to put them together:

    {"kernel": _rebuild_tensor_v2(("storage", FloatStorage, "0", "cpu", 6), 0, (3, 2),
                                  (2, 1), False, OrderedDict()), ...}
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient.backends import inert_pickle, zip_directory
from resilient.backends.arrays import DTYPES, is_countable
from resilient.backends.inert_pickle import Made, Name
from resilient.backends.stored_files import StoredFiles, corrupt, decoding

STATE = "state.pt"  # of a checkpoint of one process
_STORAGES = {
    "torch.BoolStorage": "torch.bool",
    "torch.CharStorage": "torch.int8",
    "torch.ShortStorage": "torch.int16",
    "torch.IntStorage": "torch.int32",
    "torch.LongStorage": "torch.int64",
    "torch.ByteStorage": "torch.uint8",
    "torch.HalfStorage": "torch.float16",
    "torch.FloatStorage": "torch.float32",
    "torch.DoubleStorage": "torch.float64",
    "torch.ComplexFloatStorage": "torch.complex64",
    "torch.ComplexDoubleStorage": "torch.complex128",
    "torch.BFloat16Storage": "torch.bfloat16",
}
_DIMENSIONS = 64  # the most that NumPy has
_UNTYPED = "torch.storage.UntypedStorage"  # the tensor has the dtype
_PARAMETER = "torch._utils._rebuild_parameter"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_TENSOR_OF_UNTYPED = "torch._utils._rebuild_tensor_v3"


class TorchFileError(ValueError):
    """It is not a torch file, or holds something other than tensors."""


def tensor(data: memoryview) -> np.ndarray:
    """The only tensor of a file, as a view of it.

    Raises:
        TorchFileError: It has something else.
    """
    content, archive = _opened(data)
    return archive.array(content)


def tensors(data: memoryview) -> dict[str, np.ndarray]:
    """The dict of tensors, or parameters, of a file, as views of it.

    Raises:
        TorchFileError: It has something else.
    """
    content, archive = _opened(data)
    if not isinstance(content, dict):
        raise TorchFileError(f"it holds a {type(content).__name__}, not a dict")
    found = {}
    for name, each in content.items():
        if not isinstance(name, str):
            raise TorchFileError("it holds tensors that have no name")
        found[name] = archive.array(each)
    return found


def of_checkpoint(files: StoredFiles) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint of one process.

    Raises:
        CorruptCheckpointError: There is something else.
    """
    with decoding(STATE):
        # Mapped, so copied only once: into the tensors of the model.
        found = tensors(files.mapped(STATE))
    if sum(each.nbytes for each in found.values()) > files.sizes[STATE]:
        raise corrupt(f"the tensors of {STATE} are larger than it")
    return found


def places(directory: str) -> dict[str, dict[str, slice]]:
    """Where the storages of a checkpoint's tensors are in its file.

    Args:
        directory: Of a checkpoint that this process has written.
    """
    content, archive = _opened(StoredFiles(directory, None).mapped(STATE))
    found = content.items()
    return {STATE: {name: archive.place(made.arguments[0]) for name, made in found}}


def dtype(name: object) -> np.dtype[Any]:
    """What a pickle calls ``torch.float32``.

    Raises:
        TorchFileError: It is none that a checkpoint can hold.
    """
    plain = name.name.removeprefix("torch.") if isinstance(name, Name) else ""
    if plain not in DTYPES:
        # Anything but a text may take forever to be shown.
        other = name.name if isinstance(name, Name) else type(name).__name__
        raise TorchFileError(f"it has tensors of an unsupported type: {other}")
    return np.dtype(plain)


def shape(value: object) -> tuple[int, ...]:
    """A shape that an array can have.

    Raises:
        TorchFileError: It is something else.
    """
    found = sizes(value)
    if len(found) > _DIMENSIONS or not is_countable(found):
        raise TorchFileError("a tensor has no shape")
    return found


def sizes(value: object) -> tuple[int, ...]:
    """Offsets, or the strides of a tensor.

    Raises:
        TorchFileError: It is something else.
    """
    if not isinstance(value, tuple) or not all(
        type(each) is int and each >= 0 for each in value
    ):
        raise TorchFileError("a tensor has no shape")
    return value


def _opened(data: memoryview) -> "tuple[Any, _Archive]":
    try:
        places = zip_directory.places(data)
        found = [name for name in places if name.endswith("/data.pkl")]
        if len(found) != 1:
            raise TorchFileError("it has no data.pkl, or several")
        content = inert_pickle.read(bytes(data[places[found[0]]]))
    except (zip_directory.ZipError, inert_pickle.PickleError) as error:
        raise TorchFileError(str(error)) from None
    return content, _Archive(data, found[0].removesuffix("data.pkl"), places)


class _Archive:
    def __init__(
        self, data: memoryview, folder: str, places: Mapping[str, slice]
    ) -> None:
        self._data, self._folder, self._places = data, folder, places
        self._copied = 0
        order = places.get(f"{folder}byteorder", slice(0))
        if bytes(data[order]) not in (b"", sys.byteorder.encode()):
            raise TorchFileError("a machine with another byte order wrote it")

    def array(self, made: object) -> np.ndarray:
        """What the pickle says of a tensor, as an array."""
        if isinstance(made, Made) and made.name == _PARAMETER and made.arguments:
            made = made.arguments[0]
        least = {_TENSOR: 6, _TENSOR_OF_UNTYPED: 7}
        if not isinstance(made, Made) or len(made.arguments) < least.get(
            made.name, sys.maxsize
        ):
            raise TorchFileError("it holds something other than dense tensors")
        storage, offset, extent, strides, _, _, *rest = made.arguments
        of_storage = made.name == _TENSOR
        data, of = self._storage(storage, None if of_storage else rest.pop(0))
        if any(rest):  # the value is the complex conjugate, or negative
            raise TorchFileError("it holds tensors that are to be computed")
        (start,) = sizes((offset,))
        return self._aligned(_view(data, of, start, shape(extent), sizes(strides)))

    def _aligned(self, view: np.ndarray) -> np.ndarray:
        """The same where a processor can read it; torch writes nothing else."""
        if view.flags.aligned:
            return view
        self._copied += view.nbytes  # of one storage there may be many views
        if self._copied > self._data.nbytes:
            raise TorchFileError("its tensors are larger than the file")
        return view.copy()

    def _storage(self, storage: Any, given: object) -> tuple[memoryview, Any]:
        """The bytes that a tensor is made of, and its dtype."""
        place, kind = self.place(storage), storage.arguments[1]
        if given is None:
            given = Name(_STORAGES.get(kind.name, kind.name))
        elif kind.name != _UNTYPED:
            raise TorchFileError("a tensor has a different type than its storage")
        return self._data[place], dtype(given)

    def place(self, storage: object) -> slice:
        """Where a storage's bytes are."""
        if not isinstance(storage, Made) or storage.name or len(storage.arguments) != 5:
            raise TorchFileError("a tensor has no storage")
        tag, kind, key, _, _ = storage.arguments
        if tag != "storage" or not isinstance(kind, Name) or not isinstance(key, str):
            raise TorchFileError("a tensor has no storage")
        place = self._places.get(f"{self._folder}data/{key}")
        if place is None:
            raise TorchFileError("a tensor's storage is missing")
        return place


def _view(
    data: memoryview,
    of: np.dtype[Any],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> np.ndarray:
    """What a tensor shows of its storage."""
    if len(shape) != len(strides):
        raise TorchFileError("a tensor's strides do not match its shape")
    count = math.prod(shape)
    if not count:
        return np.empty(shape, of)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    # A dimension with stride 0 would make any size of one element.
    if max(last + 1, count) * of.itemsize > data.nbytes:
        raise TorchFileError("a tensor is larger than its storage")
    bytewise = [s * of.itemsize for s in strides]
    return np.ndarray(shape, of, data, offset * of.itemsize, bytewise)
