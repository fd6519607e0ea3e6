"""Detects changes in unknown objects by a hash of their pickle.

The pickle is limited in size and thrown away. It leaves out what has no state, what is
tracked elsewhere, and what pickling might change (open files, a user-defined
``__getstate__``). Locks, connections and large objects have no mark: their changes
cannot be seen.
"""

import contextlib
import io
import pickle
import queue
import types
from collections.abc import Set
from typing import Any

import numpy as np
import xxhash

from resilient.objects import find_generators, kinds
from resilient.objects.sizing import pack_text
from resilient.serialization import classes

_BYTES = 2**20
_SILENT = frozenset({"keras", "tensorflow", "grain", "orbax", "h5py"})


def opaque_hash(
    value: Any, elsewhere: Set[int] = frozenset(), *, drawn: bool = False
) -> str | None:
    """A checksum that changes with the object; None if its changes cannot be seen.

    Args:
        value: Anything.
        elsewhere: The ids of objects that are tracked elsewhere.
        drawn: Whether it also changes with random generators within its reach.
    """
    if isinstance(value, io.IOBase):
        return _unsure(value)
    if isinstance(value, np.memmap):
        return None  # the content belongs to the file
    hashed = _Hashed()
    # The states of generators within reach of functions and attributes are saved.
    found = {} if drawn else find_generators.find({"": value})
    reached = {id(each) for each in found.values()}
    try:
        _Marking(hashed, elsewhere | reached).dump(value)
    except Exception:  # by the object's own code
        return None
    return hashed.found.hexdigest()


def _unsure(file: io.IOBase) -> str | None:
    """The mark of a file whose position is unknown: it was read by ``next()``."""
    with contextlib.suppress(Exception):
        if file.readable() and file.seekable():
            return "read on"  # by next(), which disables tell()
    return None


class _TooLarge(Exception):
    """A pickle is too large to create at each checkpoint."""


class _Hashed:
    """The sink for a pickle."""

    def __init__(self) -> None:
        self.found = xxhash.xxh3_128()
        self._left = _BYTES

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._left -= view.nbytes
        if self._left < 0:
            raise _TooLarge
        self.found.update(view)
        return view.nbytes

    def write_buffer(self, buffer: pickle.PickleBuffer) -> None:
        self.write(buffer.raw())


class _Marking(pickle.Pickler):
    """Pickles state. The result is never unpickled."""

    def __init__(self, hashed: _Hashed, elsewhere: Set[int]) -> None:
        super().__init__(hashed, protocol=5, buffer_callback=hashed.write_buffer)
        self._elsewhere = elsewhere
        self._held: list[Any] = []  # pickle identifies objects by id

    def reducer_override(self, value: Any) -> Any:
        cls = type(value)
        if value is str:
            return NotImplemented  # default for all other objects
        if isinstance(value, type):
            return self._as(value, None)
        if id(value) in self._elsewhere or _is_silent(value):
            return self._as(cls, None)
        if isinstance(value, types.FunctionType):
            return self._as(value, _function(value))
        if _is_module(cls):
            return self._as(cls, _module(value))
        if cls.__module__.partition(".")[0] == "torch" and hasattr(value, "data_ptr"):
            return self._as(cls, _tensor(value))
        if isinstance(value, queue.Queue):
            return self._as(cls, list(value.queue))
        if callable(getattr(value, "qsize", None)):
            return self._as(cls, value.qsize())
        if classes.is_plain(cls):
            return self._as(cls, classes.attributes(value))
        return NotImplemented

    def _as(self, named: Any, state: Any) -> Any:
        self._held.append(state)
        return str, (f"{named.__module__}.{named.__qualname__}",), (state,)


def _is_silent(value: Any) -> bool:
    """Whether the script recreates this, and it holds nothing to compare."""
    cls = type(value)
    return (
        isinstance(value, io.IOBase | types.MethodType | np.memmap)
        or any(classes.top_module(base) in _SILENT for base in cls.__mro__)
        or (
            not isinstance(value, types.FunctionType)
            and cls.__name__ != "partial"
            and not _is_module(cls)
            and kinds.is_configuration(value)
        )
    )


def _function(function: types.FunctionType) -> Any:
    """The content of a user function: its code, closure and defaults."""
    cells = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not set yet
            cells.append(cell.cell_contents)
    return contents_of_code(function.__code__), cells, function.__defaults__


def contents_of_code(code: types.CodeType) -> Any:
    """A function's code without line numbers, the same in each process."""
    return code.co_code, code.co_names, [_constant(each) for each in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return contents_of_code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    # The order of a set of strings differs between processes.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _module(value: Any) -> Any:
    """A torch module: its plain attributes, and whether its tensors were written to."""
    import torch

    own = vars(torch.nn.Module())
    tensors = [*value._parameters.values(), *value._buffers.values()]
    written = [None if each is None else tensor_version(each) for each in tensors]
    held = {key: item for key, item in vars(value).items() if key not in own}
    return value.training, written, held, dict(value._modules)


def tensor_version(tensor: Any) -> Any:
    """Changes when a torch tensor is written to; None if that cannot be seen."""
    # Lazy parameters and tensors of inference mode have no version.
    with contextlib.suppress(Exception):
        return tensor.data_ptr(), tuple(tensor.shape), tensor._version
    return None


def _tensor(tensor: Any) -> Any:
    if tensor.nbytes > _BYTES:
        return tensor_version(tensor)
    return pack_text(tensor)


def _is_module(cls: type) -> bool:
    return any(
        (classes.top_module(base), base.__name__) == ("torch", "Module")
        for base in cls.__mro__
    )
