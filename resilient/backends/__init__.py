"""Finds the adapter of Keras's backend, and imports no other.

With only JAX installed, TensorFlow is never imported. Backends that do not train
(numpy, OpenVINO) are refused. It knows neither Keras models nor checkpoint directories;
all layers above import it.
"""

import functools
import importlib
from typing import Any

from resilient.backends.base import ALONE, Backend, HeldTensors, Part, plain
from resilient.backends.stored import decoding
from resilient.errors import BackendNotAvailableError, NotSupportedError

__all__ = ["BACKENDS", "Backend", "HeldTensors", "get_backend", "read"]

# The libraries that each adapter imports; the extra of its name installs them.
_LIBRARIES = {
    "tensorflow": ("tensorflow",),
    "jax": ("jax", "jaxlib", "tensorstore"),
    "torch": ("torch",),
}
BACKENDS = tuple(_LIBRARIES)


def get_backend(name: str | None = None) -> Backend:
    """The adapter of a Keras backend; the same object each time.

    Args:
        name: ``"tensorflow"``, ``"jax"`` or ``"torch"``; without it, the backend that
            Keras runs on.

    Raises:
        BackendNotAvailableError: A library that it needs cannot be imported; the
            message names the ``pip`` command.
        NotSupportedError: There is no adapter of that name.
    """
    return _load(_keras_backend() if name is None else name)


def read(
    saver: str, directory: str, part: Part = ALONE, *, lazy: bool = False
) -> dict[str, Any]:
    """Read the tensors that a backend wrote, with its library, but without Keras.

    Every byte of the files was compared with its checksum before. Arrays are read-only,
    and may be mapped. A tensor that is spread over processes is a ``StoredTensor``.

    Args:
        saver: Name of the backend.
        directory: What ``HeldTensors.write`` filled, of all processes.
        part: Whose tensors to read, beside those that all processes have.
        lazy: Whether other large tensors may stay on the disk as well.

    Raises:
        BackendNotAvailableError: The library cannot be imported.
        CorruptCheckpointError: The files hold something else than ``write`` writes.
    """
    try:
        files = importlib.import_module(f"{__name__}.{saver}_files")
    except ImportError as error:
        raise _not_available(saver, error) from error
    with decoding(f"files of {saver}"), plain(directory) as path:
        found: dict[str, Any] = files.read(path, part, lazy=lazy)
    return found


@functools.cache
def _load(name: str) -> Backend:
    if name not in _LIBRARIES:
        raise NotSupportedError(
            "keras-resilient does not support this Keras backend.",
            received=repr(name),
            hint=f"Set KERAS_BACKEND to one of {', '.join(_LIBRARIES)}.",
        )
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        raise _not_available(name, error) from error
    backend: Backend = module.BACKEND
    return backend


def _keras_backend() -> str:
    try:
        import keras
    except ImportError as error:
        # `import keras` imports the configured backend, so a missing one shows here.
        missing = (error.name or "").partition(".")[0]
        for name, libraries in _LIBRARIES.items():
            if missing in libraries:
                raise _not_available(name, error) from error
        raise
    return str(keras.backend.backend())


def _not_available(name: str, error: ImportError) -> BackendNotAvailableError:
    return BackendNotAvailableError(
        f"The {name} backend needs a library that cannot be imported.",
        received=f"{type(error).__name__}: {error}",
        hint=f'Install it with: pip install "keras-resilient[{name}]"',
        name=error.name,
    )
