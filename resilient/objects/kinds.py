"""Classifies objects: state of some kind, configuration, or unknown.

The script recreates configuration (functions, classes, modules, loggers, locks,
datasets, losses, schedules), so it is not captured. Keras objects are captured through
their variables, and objects with ``state_dict`` and ``load_state_dict`` through these.
What a class says of all its objects is found once.
"""

import array
import collections
import contextlib
import ctypes
import functools
import io
import itertools
import logging
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from resilient.once import once
from resilient.serialization import classes, rng

_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.ModuleType,
    type,
    functools.partial,
    np.ufunc,
    type(np.mean),
    type(np.random.default_rng),
)
_CONFIGURATION = (
    *_CODE,
    logging.Logger,
    logging.LoggerAdapter,
    logging.Handler,
    re.Pattern,
    threading.Event,
    threading.Condition,
    type(threading.Lock()),
    type(threading.RLock()),
    weakref.ReferenceType,
)
# Attributes of Keras's callbacks: files, directories and addresses.
_PLACES = frozenset(
    {"backup_dir", "_weights_path", "_prev_weights_path", "_training_metadata_path"}
    | {"_prev_training_metadata_path", "directory", "filename", "filepath"}
    | {"log_dir", "_log_write_dir", "_train_dir", "_val_dir", "root", "path"}
)
# By name, so that none of these libraries has to be imported: data, and what Keras has
# of the graph of a model and of what it tracks.
_OPAQUE = frozenset(
    {
        *(("tensorflow", "DatasetV2"), ("tensorflow", "DistributedDataset")),
        *(("torch", "DataLoader"), ("grain", "DataLoader"), ("grain", "MapDataset")),
        ("grain", "IterDataset"),
        *(("keras", "Tracker"), ("keras", "KerasTensor"), ("keras", "Node")),
        ("keras", "SymbolicArguments"),
    }
)
_OF_USERS = frozenset({("torch", "Dataset"), ("keras", "PyDataset")})
# Types of most objects, which have parts.
_COMMON = frozenset(
    {list, dict, collections.OrderedDict, type, types.FunctionType, types.CellType}
)
_BACKENDS = frozenset({"torch", "tensorflow", "jax", "jaxlib"})
IN_MEMORY = (io.BytesIO, io.StringIO)
NUMBERS = "bBhHiIlLqQfd"  # type codes of arrays
_OF_CTYPES = frozenset(f"c?{NUMBERS}")  # those without pointers
# Of these, not the class says all, but each object.
_VARIOUS = (io.IOBase, array.array, np.ndarray, ctypes._SimpleCData, ctypes.Array)
ASK = "?"  # what its kind is
WHOLE_BYTES = 2**24  # read whole to detect changes: 2 ms
LEAVES = 10_000  # of nested values


@once
def is_keras(cls: type) -> bool:
    """Whether a class is from Keras or derived from one that is."""
    return any(classes.top_module(base) == "keras" for base in cls.__mro__)


@once
def is_configuration(cls: type) -> bool:
    """Whether the script recreates such objects, which hold no state of a run."""
    return issubclass(cls, _CODE) or is_keras(cls) or is_opaque(cls)


def is_code(value: object) -> bool:
    """Whether it is something to call or import from, and is not opened."""
    return isinstance(value, _CODE)


def names_a_place(owner: object, attribute: object) -> bool:
    """Whether an attribute of a Keras callback says where it writes.

    Only the script decides that: otherwise a checkpoint from a stranger could choose
    which file is overwritten.
    """
    if attribute not in _PLACES or not isinstance(owner, keras.callbacks.Callback):
        return False
    bases = type(owner).__mro__
    concrete = bases[: bases.index(keras.callbacks.Callback)]
    return any(classes.top_module(base) == "keras" for base in concrete)


def has_state_dict(cls: type) -> bool:
    """Whether objects of a class can return and load their state."""
    torch = sys.modules.get("torch")
    module = torch is not None and issubclass(cls, torch.nn.Module)
    if module or (is_keras(cls) and not issubclass(cls, keras.callbacks.Callback)):
        return False  # what is inside says more
    names = ("state_dict", "load_state_dict")
    return all(callable(getattr(cls, name, None)) for name in names)


@once
def is_opaque(cls: type) -> bool:
    """Whether nothing inside counts: code of others, locks, data, modules."""
    return is_opaque_in_data(cls) or not _names(cls).isdisjoint(_OF_USERS)


@once
def is_opaque_in_data(cls: type) -> bool:
    """The same where datasets are opened."""
    if cls is types.FunctionType or issubclass(cls, type):
        return False
    # For example, the ResilientFit whose save() a callback calls.
    if issubclass(cls, _CONFIGURATION) or classes.top_module(cls) == "resilient":
        return True
    return not _names(cls).isdisjoint(_OPAQUE)


def _names(cls: type) -> set[tuple[str, str]]:
    return {(classes.top_module(base), base.__name__) for base in cls.__mro__}


def is_iterator(value: Any) -> bool:
    """Whether it is in the middle of something without an accessible position."""
    known = type(value).__module__ in ("builtins", "itertools")
    return isinstance(value, types.GeneratorType | itertools.count) or (
        known and isinstance(value, Iterator)
    )


# Kinds of content ---------------------------------------------------------------


def kind_of(value: Any, *, files: bool = False) -> str | None:
    """The kind of an object's content; None if it has parts, or none of these.

    Args:
        value: Anything.
        files: Whether the position in an open file counts.
    """
    found = kind_of_class(type(value))
    return _asked(value, files=files) if found == ASK else found


@once
def kind_of_class(cls: type) -> str | None:
    """The same of all objects of a class; ``"?"`` if they differ."""
    top = classes.top_module(cls)
    if cls in _COMMON or (issubclass(cls, list | dict) and top == "keras"):
        return None
    if cls is np.ndarray:
        return "ndarray"
    if issubclass(cls, set | bytearray):
        return "value"
    various = issubclass(cls, _VARIOUS) or top in (*_BACKENDS, "pandas")
    if various or cls.__module__ == "multiprocessing.sharedctypes":
        return ASK
    of_keras = is_keras(cls) and not issubclass(cls, keras.callbacks.Callback)
    found = _of_other_class(cls)
    # Of other classes, a script may still change whether they have a `state_dict`.
    return found if found in ("variable", "random") or of_keras else ASK


def _of_other_class(cls: type) -> str | None:
    tf = sys.modules.get("tensorflow")
    of_tensorflow = tf is not None and issubclass(cls, tf.Variable)
    if of_tensorflow or issubclass(cls, keras.Variable):
        return "variable"
    if issubclass(cls, rng.KINDS):
        return None if issubclass(cls, random.SystemRandom) else "random"
    if has_state_dict(cls):
        return "state_dict"
    return "library" if classes.is_of_library(cls) else None


def _asked(value: Any, *, files: bool) -> str | None:
    """The kind of one object, whose class does not say it."""
    cls = type(value)
    if classes.top_module(cls) in _BACKENDS:
        if rng.is_jax_key(value):
            return "key"
        if _is_tensor(value):
            return "tensor"
        if rng.is_torch_generator(value):
            return "generator"
    found = _of_other_class(cls)
    if found not in (None, "library"):
        return found
    of_tensorflow = classes.top_module(cls) == "tensorflow"
    if of_tensorflow and hasattr(cls, "export") and hasattr(cls, "remove"):
        return "table"  # a lookup table that can change
    held = _buffer(value)
    if held is not None and (files or held != "file"):  # callbacks write to files
        return held
    return "library" if is_frame(value) else found


def _buffer(value: Any) -> str | None:
    """The kind of an object that holds plain content."""
    cls = type(value)
    if isinstance(value, io.IOBase):
        with contextlib.suppress(Exception):  # closed, a pipe, or being iterated
            if value.readable() and value.seekable() and value.tell() >= 0:
                return "memory" if cls in IN_MEMORY else "file"
        return None
    if cls is array.array:
        return "array" if len(value) and value.typecode in NUMBERS else None
    if isinstance(value, np.ndarray):
        plain = cls is np.ndarray or isinstance(value, np.memmap)
        return None if plain or value.dtype.hasobject else "subclass"
    return None if shared(value) is None else "shared"


def shared(value: Any) -> Any:
    """The ctypes number or array in a value, shared between processes or not."""
    inner = value
    if type(value).__module__ == "multiprocessing.sharedctypes":
        inner = value.get_obj() if hasattr(value, "get_obj") else None
    kind: Any = type(inner)
    while isinstance(inner, ctypes.Array) and issubclass(kind, ctypes.Array):
        kind = kind._type_
    code = getattr(kind, "_type_", None)
    known = isinstance(inner, ctypes._SimpleCData | ctypes.Array)
    return inner if known and code in _OF_CTYPES else None


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of a backend, whose content can be read."""
    names = ("shape", "dtype", "__array__")
    if hasattr(value, "assign") or not all(hasattr(value, name) for name in names):
        return False
    try:
        if hasattr(value, "nbytes"):
            return True
        size = np.dtype(value.dtype.as_numpy_dtype).itemsize * int(np.prod(value.shape))
        return bool(size >= 0)
    except Exception:  # sparse tensors of torch, and of unknown shape
        return False


def is_frame(value: Any) -> bool:
    """Whether it is a pandas DataFrame or Series."""
    cls = type(value)
    return classes.top_module(cls) == "pandas" and hasattr(value, "iloc")


def is_long(value: Any) -> bool:
    """Whether it is a container of so much that it is not opened."""
    todo, leaves, nbytes = [value], 0, 0
    while todo:
        item = todo.pop()
        leaves += 1
        inner: Any = ()
        if isinstance(item, str | bytes | bytearray):
            nbytes += len(item)
        elif type(item) is np.ndarray:
            nbytes += item.nbytes if item is not value else 0
        elif isinstance(item, dict):
            inner = [*dict.keys(item), *dict.values(item)]
        elif isinstance(item, list | tuple | set | frozenset | collections.deque):
            numbers = type(item) is list and set(map(type, item)) in ({int}, {float})
            nbytes += 8 * len(item) if numbers else 0
            inner = () if numbers else item
        if nbytes > WHOLE_BYTES or leaves + len(todo) + len(inner) > LEAVES:
            return True
        todo.extend(inner)
    return False
