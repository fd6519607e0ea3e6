"""Captures and restores the global random state of a process.

It covers Python's ``random``, NumPy's legacy global generator, Keras's global seed
generator and the backend's own; PyTorch's and TensorFlow's even when another backend
trains and they are merely loaded, since data pipelines draw from them. JAX has none.

Not covered: seed generators of layers, which are variables of the model, and the user's
own generators, which belong in ``stateful``. Keras has a global seed generator per
thread: call this from the training thread.
"""

import contextlib
import random
import sys
import warnings
from collections.abc import Container, Iterator
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from resilient.backends import BACKENDS, get_backend
from resilient.backends.base import Backend, Generators
from resilient.errors import NotExactWarning, NotSupportedError
from resilient.serialization import JSON, rng
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import (
    Int64,
    MalformedError,
    taking,
    well_formed,
)

# Backends with a global random state of their own.
_DRAWN_FROM = ("tensorflow", "torch")


class RandomState(TypedDict):
    """What ``capture`` returns."""

    python: Any
    numpy: dict[str, Any]
    keras: Annotated[list[Int64], Meta(min_length=2, max_length=2)] | None
    backends: dict[str, Any]
    backend: NotRequired[str]  # the training backend


def capture(backend: Backend) -> JSON:
    """The state of every global generator; draws from none of them."""
    from resilient import keras_internals

    loaded = [
        name for name in _DRAWN_FROM if name in sys.modules and name != backend.name
    ]
    backends = {name: _generators(name) for name in loaded} | {backend.name: backend}
    return {
        "python": rng.state(rng.PYTHON),
        "numpy": _numpy_state(),
        "keras": keras_internals.global_seed_generator_state(),
        "backends": {
            name: encode(each.random_state(), {}, name)
            for name, each in backends.items()
        },
        "backend": backend.name,
    }


def restore(backend: Backend, state: JSON, leave: Container[object] = ()) -> None:
    """Restore what ``capture`` returned, here or in another process.

    Call it last: everything else in a restore may draw random numbers.

    Args:
        backend: The training backend.
        state: What ``capture`` returned, on any backend.
        leave: Which of "python", "numpy" and "torch" to leave alone.

    Raises:
        MalformedError: It is not a result of ``capture``.
    """
    from resilient import keras_internals

    state = _known(backend, state)
    for name, backend_state in state["backends"].items():
        if name in leave:
            continue
        each = _of(name, backend)
        if each is None:
            _warn_missing(name)
        else:
            with taking(f"the random state of {name}"):
                each.set_random_state(decode(backend_state, {}))
    # Before Python's: a recreated seed generator may draw its seed from there.
    with taking("the random state of keras"):
        keras_internals.set_global_seed_generator_state(state["keras"], backend.assign)
    if "numpy" not in leave:
        rng.set_state(rng.NUMPY, state["numpy"])
    if "python" not in leave:
        rng.set_state(rng.PYTHON, state["python"])


def check(backend: Backend, state: JSON) -> None:
    """Raise unless ``restore`` would accept it; set nothing.

    Raises:
        MalformedError: It is not a result of ``capture``.
    """
    state = _known(backend, state)
    for name, backend_state in state["backends"].items():
        each = _of(name, backend)
        if each is not None:
            with taking(f"the random state of {name}"):
                each.check_random_state(decode(backend_state, {}))
    rng.set_state(np.random.RandomState(0), state["numpy"])
    rng.set_state(random.Random(0), state["python"])


@contextlib.contextmanager
def kept_random_state(
    backend: Backend, leave: Container[object] = ()
) -> Iterator[None]:
    """Restore the global random state on exit.

    Except for generators to leave alone, to which the body may add.
    """
    state = capture(backend)
    try:
        yield
    finally:
        restore(backend, state, leave)


def drawn_from(before: JSON, after: JSON) -> set[str]:
    """Which of Python's, NumPy's and PyTorch's generators differ in two states."""
    found = {name for name in ("python", "numpy") if before[name] != after[name]}
    torch = [state["backends"].get("torch") for state in (before, after)]
    return found | ({"torch"} if None not in torch and torch[0] != torch[1] else set())


def _known(backend: Backend, state: JSON) -> JSON:
    """The part of a state that can be set here; another backend may have saved it.

    Libraries loaded in this process may draw here as well, for data. Keras seeds have
    32 bits, which torch shows with a sign.
    """
    state = well_formed(RandomState, state, "the random state")
    backends, ours = state["backends"], backend.name
    others = backends.keys() & set(BACKENDS) - {ours, *_DRAWN_FROM}
    guess = (
        "" if others or ours not in backends else ours
    )  # older checkpoints do not tell
    if state.get("backend", guess) == ours:
        return state
    useless = set(BACKENDS) - {n for n in _DRAWN_FROM if n in sys.modules}
    loaded = {n: s for n, s in backends.items() if n not in useless}
    seeds = state["keras"] and [number & 0xFFFFFFFF for number in state["keras"]]
    return {**state, "backends": loaded, "keras": seeds}


def _of(name: str, backend: Backend) -> Generators | None:
    """A library that draws, imported here if it was loaded then and is installed."""
    if name == backend.name:
        return backend
    if name not in _DRAWN_FROM:
        raise MalformedError(f"the random state of {name!r}")
    try:
        return _generators(name)
    except ImportError:
        return None


def _generators(name: str) -> Generators:
    """Those of a library that does not train here."""
    if name == "torch":  # importing the rest of its adapter takes 0.4 s
        from resilient.backends.torch_random import GENERATORS

        return GENERATORS
    return get_backend(name)


def _warn_missing(name: str) -> None:
    warnings.warn(
        f"Random numbers drawn from {name} will differ: it was loaded when the "
        "checkpoint was saved and is not installed now.",
        NotExactWarning,
        stacklevel=3,
    )


def _numpy_state() -> JSON:
    state: JSON = rng.state(rng.NUMPY)
    if state["bit_generator"] != "MT19937":
        raise NotSupportedError(
            "NumPy's global generator was replaced by one whose state cannot be "
            "restored.",
            received=state["bit_generator"],
            hint="Do not call numpy.random.set_bit_generator.",
        )
    return state
