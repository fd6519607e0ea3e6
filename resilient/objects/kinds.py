"""What kind of thing an object is: state, configuration, or unknown.

Configuration (functions, classes, modules, loggers, locks, datasets, losses, schedules)
is made again by the script, so it is not captured. Captured are Keras objects with
variables, through those variables, and objects with ``state_dict`` and
``load_state_dict``, through these.
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
    """Whether the object's class is Keras's or derived from one."""
    return any(classes.top_module(base) == "keras" for base in type(value).__mro__)


def is_configuration(value: object) -> bool:
    """Whether the script makes this again, and no state of a run is in it."""
    if isinstance(value, _CONFIGURATION):
        return True
    if is_keras(value):
        return not variables(value) and not isinstance(value, keras.callbacks.Callback)
    if classes.top_module(type(value)) == "resilient":
        return True  # such as the ResilientFit whose save() a callback calls
    names = {(classes.top_module(b), b.__name__) for b in type(value).__mro__}
    return bool(names & _DATASETS)


def is_code(value: object) -> bool:
    """Whether it is called or imported from, rather than looked into."""
    return isinstance(value, _CODE)


def names_a_place(owner: object, attribute: object) -> bool:
    """Whether an attribute of a callback of Keras's says where it writes.

    It is the script's to say: with a checkpoint's word for it, a file that somebody
    else wrote would choose what is overwritten.
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
    """Whether the object returns its state and takes it back."""
    cls = type(value)
    if is_keras(value) and not isinstance(value, keras.callbacks.Callback):
        return False  # with PyTorch every layer has them, Keras has better
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
