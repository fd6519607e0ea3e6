"""The states of generators of random numbers, as plain values.

States are kept whole, not as changes since the script made the generators: it may have
seeded them from a global generator, or not at all. numpy's seed sequences count as
generators, since they count the children that they spawned.
"""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient.serialization import classes

_KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    np.random.SeedSequence,
    random.Random,
)


def is_generator(value: Any) -> bool:
    """Whether it draws, or spawns what draws; of Python, numpy or torch."""
    return is_torch_generator(value) or isinstance(value, _KINDS)


def state(generator: Any) -> Any:
    """The state of a generator, of values that can be compared."""
    if is_torch_generator(generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return state(generator.bit_generator)
    if isinstance(generator, np.random.BitGenerator):
        seeds = state(generator.seed_seq) if _spawns(generator) else None
        return {"state": frozen(generator.state), "seeds": seeds}
    if isinstance(generator, np.random.SeedSequence):
        return frozen(generator.state)
    if isinstance(generator, np.random.RandomState):
        return frozen(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, np.array(words, "<u4").tobytes(), gauss]


def set_state(generator: Any, state: Any) -> None:
    """Set what ``state`` returned."""
    if is_torch_generator(generator):
        import torch

        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        set_state(generator.bit_generator, state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = thawed(state["state"])
        if state["seeds"] is not None and _spawns(generator):
            set_state(generator.seed_seq, state["seeds"])
    elif isinstance(generator, np.random.SeedSequence):
        # Nothing else sets the number of children; others may hold this object, too.
        np.random.SeedSequence.__init__(generator, **thawed(state))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(thawed(state))
    else:
        version, words, gauss = state
        internal = tuple(np.frombuffer(words, "<u4").tolist())
        generator.setstate((version, internal, gauss))


def _spawns(generator: np.random.BitGenerator) -> bool:
    return isinstance(generator.seed_seq, np.random.SeedSequence)


def states(found: Mapping[Any, Any]) -> dict[Any, Any]:
    """The states of some generators, by name."""
    return {name: state(generator) for name, generator in found.items()}


def set_states(found: Mapping[Any, Any], states: Mapping[Any, Any]) -> None:
    """Set what ``states`` returned, where these generators are there."""
    for name, state in states.items():
        if name in found:
            set_state(found[name], state)


@contextlib.contextmanager
def kept_states(found: Mapping[Any, Any]) -> Iterator[None]:
    """Put these generators back at the end."""
    before = states(found)
    try:
        yield
    finally:
        set_states(found, before)


def frozen(value: Any) -> Any:
    """Arrays as their dtype and bytes: these compare as one value."""
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "bytes": value.tobytes()}
    return value.item() if isinstance(value, np.generic) else value


def thawed(value: Any) -> Any:
    """What ``frozen`` was given."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "bytes"}:
        return np.frombuffer(value["bytes"], value["dtype"]).copy()
    return {key: thawed(item) for key, item in value.items()}


def is_torch_generator(value: Any) -> bool:
    """Whether it is PyTorch's, which need not be imported."""
    cls = type(value)
    return (classes.top_module(cls), cls.__name__) == ("torch", "Generator")
