"""Generators of random numbers, global ones and objects, as plain values."""

import random
from typing import Any

import numpy as np
import torch

from resilient.serialization import rng

GLOBAL = ("python", "numpy", "torch")


def state(name: str, generator: Any) -> Any:
    """The state of a generator, of values that can be compared.

    Args:
        name: One of ``GLOBAL``, or any other name.
        generator: Where the name is another.
    """
    if name == "numpy":
        return rng.frozen(np.random.get_state(legacy=False))
    return rng.state(_named(name, generator))


def set_state(name: str, generator: Any, state: Any) -> None:
    """Set what ``state`` returned."""
    if name == "numpy":
        np.random.set_state(rng.thawed(state))
    else:
        rng.set_state(_named(name, generator), state)


def _named(name: str, generator: Any) -> Any:
    return {"python": random, "torch": torch.default_generator}.get(name, generator)
