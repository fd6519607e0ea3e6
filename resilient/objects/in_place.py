"""Gives a live object the content of another, since others may refer to it."""

import collections
from typing import Any

import numpy as np

from resilient.serialization import classes, rng


def assign_in_place(live: Any, value: Any) -> bool:
    """Give a mutable object the content of another; False if impossible."""
    if hasattr(live, "data_ptr") and hasattr(
        value, "data_ptr"
    ):  # PyTorch's, parameters
        if (live.shape, live.dtype) != (value.shape, value.dtype):
            return False
        live.data.copy_(value)
        return True
    if type(live) is not type(value):
        return False
    if isinstance(live, np.ndarray):
        if (live.shape, live.dtype) != (value.shape, value.dtype):
            return False
        if not live.flags.writeable:
            return False
        live[...] = value
    elif isinstance(live, dict | set):
        live.clear()
        live.update(value)
    elif isinstance(live, list | bytearray):
        live[:] = value
    elif isinstance(live, collections.deque):
        live.clear()
        live.extend(value)
    elif rng.is_generator(live):
        if rng.kind(live) != rng.kind(value):
            return False
        rng.set_state(live, rng.state(value))
    elif classes.is_plain(type(live)):
        classes.set_attributes(live, classes.attributes(value))
    else:
        return False
    return True
