"""The global random state of a process: captured, and set again bit for bit.

Python's ``random``, numpy's legacy global generator, Keras's global seed generator, and
the backend's own. PyTorch's and TensorFlow's also when another backend trains and they
are merely loaded, since data pipelines draw from them. JAX has none.

Not here: seed generators of layers, which are variables of the model, and generator
objects of the user's own, which belong in ``stateful``. Keras keeps its global seed
generator per thread: call from the thread that trains.
"""

import contextlib
import random
import sys
import warnings
from base64 import b64decode, b64encode
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from resilient.backends import get_backend
from resilient.backends.base import JSON, Backend
from resilient.errors import (
    BackendNotAvailableError,
    NotExactWarning,
    NotSupportedError,
)

# Backends with a global random state of their own.
_DRAWN_FROM = ("tensorflow", "torch")


def capture(backend: Backend) -> JSON:
    """Return every global generator's state, drawing from none of them."""
    from resilient import keras_internals

    backends = {name: get_backend(name) for name in _DRAWN_FROM if name in sys.modules}
    backends[backend.name] = backend
    return {
        "python": random.getstate(),
        "numpy": _encode(_numpy_state()),
        "keras": _encode(keras_internals.global_seed_generator_state()),
        "backends": {name: each.random_state() for name, each in backends.items()},
    }


def restore(backend: Backend, state: JSON, leave: Container[object] = ()) -> None:
    """Set what ``capture`` returned, here or in another process.

    Call it last: whatever else a restore does may draw random numbers.

    Args:
        backend: The one that trains.
        state: What ``capture`` returned.
        leave: Which of Python's, NumPy's and PyTorch's generators to leave as they are.
    """
    from resilient import keras_internals

    for name, backend_state in state["backends"].items():
        if name in leave:
            continue
        each = backend if name == backend.name else _other_backend(name)
        if each is not None:
            each.set_random_state(backend_state)
    # Before Python's: a seed generator that is made anew may draw its seed from there.
    seeds = _decode(state["keras"])
    keras_internals.set_global_seed_generator_state(seeds, backend.assign)
    if "numpy" not in leave:
        np.random.set_state(_decode(state["numpy"]))
    if "python" not in leave:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))


@contextlib.contextmanager
def kept_random_state(
    backend: Backend, leave: Container[object] = ()
) -> Iterator[None]:
    """Whatever is drawn inside leaves the global random state as it was.

    But for those to leave, which may be found out inside.
    """
    state = capture(backend)
    try:
        yield
    finally:
        restore(backend, state, leave)


def drawn_from(before: JSON, after: JSON) -> set[str]:
    """Which of Python's, NumPy's and PyTorch's generators differ in two states."""

    def python(state: JSON) -> Any:
        version, internal, gauss = state["python"]
        return version, tuple(internal), gauss

    found = {"python"} if python(before) != python(after) else set()
    found |= {"numpy"} if before["numpy"] != after["numpy"] else set()
    torch = [state["backends"].get("torch") for state in (before, after)]
    return found | ({"torch"} if None not in torch and torch[0] != torch[1] else set())


def numpy_state() -> JSON:
    """The state of numpy's global generator alone, as JSON."""
    state: JSON = _encode(_numpy_state())
    return state


@contextlib.contextmanager
def from_numpy_state(state: JSON) -> Iterator[None]:
    """Draw from such a state; numpy's global generator is left as it was."""
    now = np.random.get_state(legacy=False)
    np.random.set_state(_decode(state))
    try:
        yield
    finally:
        np.random.set_state(now)


def _other_backend(name: str) -> Backend | None:
    """A library that was merely loaded: imported here too, if it still can be."""
    try:
        return get_backend(name)
    except BackendNotAvailableError as error:
        warnings.warn(
            f"Random numbers drawn from {name} will differ: it was loaded when the "
            f"checkpoint was saved and is not installed now ({error.name}).",
            NotExactWarning,
            stacklevel=3,
        )
        return None


def _numpy_state() -> dict[str, Any]:
    state: dict[str, Any] = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise NotSupportedError(
            "numpy's global generator was replaced, and the new kind has no way"
            " back to a saved state.",
            received=state["bit_generator"],
            hint="Do not call numpy.random.set_bit_generator.",
        )
    return state


def _encode(value: Any) -> Any:
    """Replace arrays in nested dicts by base64 text."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"))
        return {
            "base64": b64encode(little.tobytes()).decode("ascii"),
            "dtype": little.dtype.str,
            "shape": list(value.shape),
        }
    return value.item() if isinstance(value, np.generic) else value


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "base64" not in value:
        return {key: _decode(item) for key, item in value.items()}
    flat = np.frombuffer(b64decode(value["base64"]), np.dtype(value["dtype"]))
    native = flat.astype(flat.dtype.newbyteorder("="))
    return native.reshape(value["shape"])
