"""Classifies objects as state, configuration, or unknown.

The script recreates configuration (functions, classes, modules, loggers, locks,
datasets, losses, schedules), so it is not captured. Keras objects are captured through
their variables, and objects with ``state_dict`` and ``load_state_dict`` through these.
"""

import functools
import logging
import re
import sys
import threading
import types
import weakref
from typing import Any

import keras
import numpy as np

from resilient.serialization import classes

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
        *(("torch", "Dataset"), ("torch", "DataLoader"), ("grain", "DataLoader")),
        *(("grain", "MapDataset"), ("grain", "IterDataset"), ("keras", "PyDataset")),
        *(("keras", "Tracker"), ("keras", "KerasTensor"), ("keras", "Node")),
        ("keras", "SymbolicArguments"),
    }
)
_OF_USERS = frozenset({("torch", "Dataset"), ("keras", "PyDataset")})


def is_keras(value: object) -> bool:
    """Whether the object's class is from Keras or derived from one that is."""
    return any(classes.top_module(base) == "keras" for base in type(value).__mro__)


def is_configuration(value: object) -> bool:
    """Whether the script recreates this, and it holds no state of a run."""
    return is_code(value) or is_keras(value) or is_opaque(value)


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


def has_state_dict(value: object) -> bool:
    """Whether the object can return and load its state."""
    cls = type(value)
    torch = sys.modules.get("torch")
    module = torch is not None and isinstance(value, torch.nn.Module)
    if module or (is_keras(value) and not isinstance(value, keras.callbacks.Callback)):
        return False  # what is inside says more
    return callable(getattr(cls, "state_dict", None)) and callable(
        getattr(cls, "load_state_dict", None)
    )


def is_table(value: Any) -> bool:
    """Whether it is a lookup table of TensorFlow that can change."""
    cls = type(value)
    of_tensorflow = classes.top_module(cls) == "tensorflow"
    return of_tensorflow and hasattr(cls, "export") and hasattr(cls, "remove")


def is_opaque(value: object, *, data: bool = False) -> bool:
    """Whether nothing inside it counts: code of others, locks, data, modules.

    Args:
        value: Anything.
        data: Whether datasets are opened.
    """
    if isinstance(value, types.FunctionType | type):
        return False
    cls = type(value)
    # For example, the ResilientFit whose save() a callback calls.
    if isinstance(value, _CONFIGURATION) or classes.top_module(cls) == "resilient":
        return True
    names = {(classes.top_module(base), base.__name__) for base in cls.__mro__}
    return not names.isdisjoint(_OPAQUE - _OF_USERS if data else _OPAQUE)
