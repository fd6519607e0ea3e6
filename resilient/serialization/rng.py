"""Encodes the states of random generators as JSON, for everything that needs them.

Generators of Python, NumPy and PyTorch are read and set in place. States are kept
whole, not as changes since the script created the generators: it may have seeded them
from a global generator, or not at all. NumPy's seed sequences count as generators,
since they count their spawned children. JAX has no generators, only keys, which are
values.
"""

import contextlib
import random
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient.serialization import Encoded, classes
from resilient.serialization.schema import taking

# The libraries' own generators. They stay the same objects, whatever seeds them.
PYTHON: random.Random = random.getstate.__self__  # type: ignore[attr-defined]
NUMPY: np.random.RandomState = np.random.get_state.__self__  # type: ignore[attr-defined]

KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    np.random.SeedSequence,
    random.Random,
)


def global_generators() -> dict[str, Any]:
    """The libraries' global generators, by library; PyTorch's if it is loaded."""
    found: dict[str, Any] = {"python": PYTHON, "numpy": NUMPY}
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].default_generator
    return found


def is_generator(value: Any) -> bool:
    """Whether it is a generator or seed sequence of Python, NumPy or PyTorch."""
    return is_torch_generator(value) or isinstance(value, KINDS)


def is_torch_generator(value: Any) -> bool:
    """Whether it is PyTorch's, which need not be imported."""
    cls = type(value)
    return (classes.top_module(cls), cls.__name__) == ("torch", "Generator")


def kind(generator: Any) -> str:
    """The algorithm: a generator accepts only states of its own kind."""
    if isinstance(generator, np.random.RandomState):
        return f"RandomState of {generator.get_state(legacy=False)['bit_generator']}"
    return type(getattr(generator, "bit_generator", generator)).__name__


def state(generator: Any) -> Encoded:
    """The state of a generator; equal states compare equal."""
    if is_torch_generator(generator):
        return _text(generator.get_state().numpy())
    if isinstance(generator, np.random.Generator):
        return state(generator.bit_generator)
    if isinstance(generator, np.random.BitGenerator):
        spawns = isinstance(generator.seed_seq, np.random.SeedSequence)
        seeds = state(generator.seed_seq) if spawns else None
        return {"state": _plain(generator.state), "seeds": seeds}
    if isinstance(generator, np.random.SeedSequence):
        return _plain(generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, _text(np.array(words, "<u4")), gauss]


@taking("the state of a random generator")
def set_state(generator: Any, state: Encoded) -> None:
    """Set what ``state`` returned.

    Raises:
        MalformedError: It is not the state of such a generator.
    """
    if is_torch_generator(generator):
        words = sys.modules["torch"].from_numpy(_array(state, "u1"))
        generator.set_state(words)
    elif isinstance(generator, np.random.Generator):
        set_state(generator.bit_generator, state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = _native(state["state"])
        if state["seeds"] is not None:
            set_state(generator.seed_seq, state["seeds"])
    elif isinstance(generator, np.random.SeedSequence):
        # Nothing else sets the number of children; others may hold this object, too.
        np.random.SeedSequence.__init__(generator, **_native(state))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_native(state))
    else:
        version, words, gauss = state
        generator.setstate((version, tuple(_array(words, "<u4").tolist()), gauss))


def states(found: Mapping[Any, Any]) -> dict[Any, Encoded]:
    """The states of some generators, by name."""
    return {name: state(generator) for name, generator in found.items()}


def set_states(found: Mapping[Any, Any], states: Mapping[Any, Encoded]) -> None:
    """Set what ``states`` returned, for generators that exist here."""
    for name, state in states.items():
        if name in found:
            set_state(found[name], state)


@contextlib.contextmanager
def kept_states(found: Mapping[Any, Any]) -> Iterator[None]:
    """Reset these generators on exit."""
    before = states(found)
    try:
        yield
    finally:
        set_states(found, before)


@contextlib.contextmanager
def drawing_from(generator: Any, state: Encoded) -> Iterator[None]:
    """Make a generator draw from such a state, and reset it on exit."""
    with kept_states({"": generator}):
        set_state(generator, state)
        yield


def _plain(value: Any) -> Encoded:
    """NumPy's state as JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "base64": _text(value)}
    return value.item() if isinstance(value, np.generic) else value


def _native(value: Encoded) -> Any:
    """What ``_plain`` was given; NumPy takes a list where it gave a tuple."""
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return _array(value["base64"], value["dtype"])
    return {key: _native(item) for key, item in value.items()}


def _text(array: np.ndarray) -> str:
    return b64encode(array.tobytes()).decode("ascii")


def _array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(bytearray(b64decode(text)), dtype)


def is_jax_key(value: Any) -> bool:
    """Whether it is a typed key, ``jax.random.key()``, or an array of them."""
    if classes.top_module(type(value)) not in ("jax", "jaxlib"):
        return False
    return str(getattr(value, "dtype", "")).startswith("key<")


def jax_key_content(key: Any) -> tuple[str, np.ndarray]:
    """The name of a key's generator, and its words."""
    import jax

    return str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key))


def jax_key(name: str, words: Any) -> Any:
    """The key whose content this was."""
    import jax

    return jax.random.wrap_key_data(words, impl=name)
