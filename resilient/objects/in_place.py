"""Give a living object the content of another: others may refer to it, too."""

import collections
import random
from typing import Any

import numpy as np

from resilient.serialization import classes
from resilient.serialization.rng import set_state, state


def assign_in_place(live: Any, value: Any) -> bool:
    """Give a mutable object the content of another; False if that cannot be done."""
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
    elif isinstance(live, random.Random):
        live.setstate(value.getstate())
    elif isinstance(live, np.random.RandomState):
        live.set_state(value.get_state(legacy=False))
    elif isinstance(live, np.random.Generator):
        return assign_in_place(live.bit_generator, value.bit_generator)
    elif isinstance(live, np.random.BitGenerator):
        set_state(live, state(value))  # with how many children it spawned
    elif hasattr(live, "copy_"):  # a tensor of PyTorch, which may change in place
        if (live.shape, live.dtype) != (value.shape, value.dtype):
            return False
        live.data.copy_(value)
    elif classes.is_plain(type(live)):
        classes.set_attributes(live, classes.attributes(value))
    else:
        return False
    return True
