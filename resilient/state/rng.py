"""Captures and restores the global random state of a process.

It covers Python's ``random``, NumPy's legacy global generator, Keras's global seed
generator and the backend's own; PyTorch's and TensorFlow's even when another backend
trains and they are merely loaded, since data pipelines draw from them. JAX has none.

Not covered: seed generators of layers, which are variables of the model, and the user's
own generators, which belong in ``stateful``. Keras has a global seed generator per
thread: call this from the training thread.
"""

import contextlib
import sys
from collections.abc import Container, Iterator
from typing import Any, TypedDict

from resilient.backends import get_backend
from resilient.backends.base import Backend, Generators
from resilient.errors import NotSupportedError
from resilient.serialization import JSON, rng
from resilient.serialization.json_values import decode, encode
from resilient.serialization.schema import taking

# Backends with a global random state of their own.
_DRAWN_FROM = ("tensorflow", "torch")


class RandomState(TypedDict):
    """What ``capture`` returns."""

    python: Any
    numpy: dict[str, Any]
    keras: list[int] | None
    backends: dict[str, Any]
    backend: str  # the training backend


def capture(backend: Backend) -> JSON:
    """The state of every global generator; draws from none of them."""
    from resilient import keras_internals

    return {
        "python": rng.state(rng.PYTHON),
        "numpy": _numpy_state(),
        "keras": keras_internals.global_seed_generator_state(),
        "backends": {
            name: encode(_generators(name, backend).random_state(), {}, name)
            for name in dict.fromkeys([*_loaded(), backend.name])
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
        BackendNotAvailableError: A library that drew is not installed any more.
        MalformedError: It is not a result of ``capture``.
    """
    from resilient import keras_internals

    elsewhere = state["backend"] != backend.name
    for name, saved in state["backends"].items():
        # What trained elsewhere may be missing here; if it is loaded, data may draw.
        if name in leave or (elsewhere and name not in _loaded()):
            continue
        generators = _generators(name, backend)
        with taking(f"the random state of {name}"):
            generators.set_random_state(decode(saved, {}))
    # Before Python's: a recreated seed generator may draw its seed from there.
    with taking("the random state of keras"):
        keras_internals.set_global_seed_generator_state(state["keras"], backend.assign)
    if "numpy" not in leave:
        rng.set_state(rng.NUMPY, state["numpy"])
    if "python" not in leave:
        rng.set_state(rng.PYTHON, state["python"])


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


def _loaded() -> list[str]:
    """The libraries that draw and are loaded here."""
    return [name for name in _DRAWN_FROM if sys.modules.get(name)]


def _generators(name: str, backend: Backend) -> Generators:
    """Those of a library; one that was loaded when the state was saved is imported."""
    if name == backend.name:
        return backend
    if name == "torch" and name in _loaded():  # its whole adapter takes 0.4 s
        from resilient.backends.torch_random import GENERATORS

        return GENERATORS
    return get_backend(name)


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
