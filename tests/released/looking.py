"""What is looked at, as a record: exact, and with the classes of the user's values."""

import collections
import dataclasses
import enum
import hashlib
import random
from typing import Any

import keras
import numpy as np
from kill.capture import as_numpy, variables
from kill.record import Record, flatten

# What Keras's callbacks learn, and releases of Keras have in common.
_LEARNT = (
    *("best", "best_epoch", "best_weights", "wait", "stopped_epoch"),
    *("cooldown_counter", "epochs_since_last_save", "keys", "append_header"),
)
_OF_FIT = ("_model", "_params", "model", "params")


def recorded(**parts: Any) -> Record:
    """The record of values, by name."""
    found: Record = {}
    for name, part in parts.items():
        found |= flatten(_plain(part), name)
    return found


def synced(net: keras.Model) -> None:
    """On JAX ``fit`` keeps the values of variables to itself."""
    if keras.backend.backend() == "jax":
        net.jax_state_sync()


def values_of(net: keras.Model) -> dict[str, list[np.ndarray]]:
    """All variables that training changes, by group."""
    return dict(variables(net))


def known(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """What a callback knows; the paths of files are the script's."""
    if type(callback).__module__.startswith("keras"):
        return {
            name: vars(callback)[name] for name in _LEARNT if name in vars(callback)
        }
    if hasattr(callback, "state_dict"):
        return dict(callback.state_dict())
    return {name: x for name, x in vars(callback).items() if name not in _OF_FIT}


def _plain(value: Any) -> Any:
    """A value made of those that a record tells apart."""
    value = _content(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is tuple and len(value) > 100:  # the state of a random generator
        value = np.array(value)
    if isinstance(value, np.ndarray) and value.nbytes > 4096:  # such a state, mostly
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.dtype.name}{list(value.shape)} with SHA-256 {digest}"
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _content(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, keras.Variable):
        return as_numpy(value.value)
    if isinstance(value, enum.Enum):
        return repr(value)
    if isinstance(value, collections.deque):
        return {"maxlen": value.maxlen, "items": list(value)}
    if dataclasses.is_dataclass(value):
        return {"class": type(value).__qualname__, **vars(value)}
    return value.__qualname__ if callable(value) else value
