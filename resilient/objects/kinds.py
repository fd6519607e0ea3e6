"""Classifies objects as state, configuration, or unknown.

The script recreates configuration (functions, classes, modules, loggers, locks,
datasets, losses, schedules), so it is not captured. Keras objects are captured through
their variables, and objects with ``state_dict`` and ``load_state_dict`` through these.
"""

import functools
import logging
import re
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
# By name, so that none of these libraries has to be imported.
_DATASETS = frozenset(
    {
        ("tensorflow", "DatasetV2"),
        ("tensorflow", "DistributedDataset"),
        ("torch", "Dataset"),
        ("torch", "DataLoader"),
        ("grain", "DataLoader"),
        ("grain", "MapDataset"),
        ("grain", "IterDataset"),
    }
)


def is_keras(value: object) -> bool:
    """Whether the object's class is from Keras or derived from one that is."""
    return any(classes.top_module(base) == "keras" for base in type(value).__mro__)


def is_configuration(value: object) -> bool:
    """Whether the script recreates this, and it holds no state of a run."""
    if isinstance(value, _CONFIGURATION):
        return True
    if is_keras(value):
        return not variables(value) and not isinstance(value, keras.callbacks.Callback)
    if classes.top_module(type(value)) == "resilient":
        return True  # for example, the ResilientFit whose save() a callback calls
    names = {(classes.top_module(b), b.__name__) for b in type(value).__mro__}
    return bool(names & _DATASETS)


def is_code(value: object) -> bool:
    """Whether it is something to call or import from, not to look into."""
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


def is_tensor_of_keras(value: object) -> bool:
    """Whether it is a tensor of PyTorch, and Keras runs on it."""
    on_torch = keras.backend.backend() == "torch"
    return on_torch and bool(keras.ops.is_tensor(value))


def has_state_dict(value: object) -> bool:
    """Whether the object can return and load its state."""
    cls = type(value)
    if is_keras(value) and not isinstance(value, keras.callbacks.Callback):
        return False  # on PyTorch every layer has them, but Keras has better ones
    return callable(getattr(cls, "state_dict", None)) and callable(
        getattr(cls, "load_state_dict", None)
    )


def variables(value: Any) -> list[Any]:
    """The variables that a Keras object is or holds; empty for other objects."""
    if isinstance(value, keras.Variable) or (
        hasattr(value, "assign") and keras.ops.is_tensor(value)  # tf.Variable
    ):
        return [value]
    if not is_keras(value):
        return []
    held = getattr(value, "variables", None)
    if isinstance(held, list):
        return held
    return [v for v in vars(value).values() if isinstance(v, keras.Variable)]
