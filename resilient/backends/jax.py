"""JAX: written with Orbax, as a flat PyTree in ``state/``.

``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads it. Orbax
refuses arrays without elements ("Cannot save arrays with zero size"): their shapes and
dtypes, which are all there is to them, stand in ``zero_sized.json`` beside.

Refuses typed PRNG keys, sparse arrays, and arrays whose shards live in other processes.
JAX has no global random state.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as ocp

from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    ArraySnapshot,
    check_dtype,
    check_like,
    check_names,
    copy_array,
)
from resilient.backends.base import JSON, Backend, Snapshot
from resilient.errors import NotSupportedError, describe

_STATE = "state"
_ZERO_SIZED = "zero_sized.json"


class JaxBackend:
    """The adapter of JAX."""

    name: ClassVar[str] = "jax"

    def snapshot(self, tensors: Mapping[str, Any]) -> Snapshot:
        check_names(tensors)
        values = {name: _value(name, tensor) for name, tensor in tensors.items()}
        # One call, so that the transfers from an accelerator overlap. On the CPU it
        # returns views of the live buffers, hence the copy.
        host = jax.device_get(values)
        arrays = {name: copy_array(name, np.asarray(host[name])) for name in values}
        return ArraySnapshot(arrays, _write)

    def read(self, directory: str) -> dict[str, np.ndarray]:
        with open(os.path.join(directory, _ZERO_SIZED), encoding="utf-8") as file:
            zero_sized = json.load(file)
        arrays = {
            name: np.empty(shape, EXTENSION_DTYPES.get(dtype, dtype))
            for name, (shape, dtype) in zero_sized.items()
        }
        path = os.path.abspath(os.path.join(directory, _STATE))
        if os.path.isdir(path):
            with _quiet_orbax(), ocp.PyTreeCheckpointer() as checkpointer:
                arrays |= checkpointer.restore(path)
        return arrays

    def assign(self, target: Any, value: np.ndarray) -> None:
        if not isinstance(target, keras.Variable):
            raise NotSupportedError(
                describe(
                    "A JAX array cannot be set in place.",
                    type(target).__name__,
                    "Keep the array in a keras.Variable.",
                )
            )
        current = target.value
        check_like(target, current.shape, current.dtype, value)
        # Copied, since JAX may keep a view of the memory it was given. Committed to a
        # device only if the old array was: otherwise training would compile again.
        if current.committed:
            new = jax.device_put(np.array(value), current.sharding)
        else:
            new = jnp.array(value)
        with warnings.catch_warnings():
            # A Keras variable declared int64 holds int32 while x64 is off, and JAX
            # warns at each assignment about what was the case all along.
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            target.assign(new)

    def random_state(self) -> JSON:
        return {}

    def set_random_state(self, state: JSON) -> None:
        pass

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "jaxlib": version("jaxlib")}


def _value(name: str, tensor: Any) -> Any:
    """The array behind ``tensor``, or a refusal before anything is transferred."""
    value = tensor.value if isinstance(tensor, keras.Variable) else tensor
    if isinstance(value, np.ndarray | np.generic):
        return value
    if not isinstance(value, jax.Array):
        raise NotSupportedError(
            describe(
                f"The tensor {name!r} is of a kind that a checkpoint cannot hold.",
                type(value).__name__,
                "Supported are dense arrays and variables of numbers and booleans; of"
                " a typed PRNG key save jax.random.key_data(key).",
            )
        )
    check_dtype(name, value.dtype)
    if not value.is_fully_addressable:
        raise NotSupportedError(
            describe(
                f"Parts of the tensor {name!r} live in other processes.",
                str(value.sharding),
                "Train in one process.",
            )
        )
    return value


def _write(arrays: Mapping[str, np.ndarray], directory: str) -> None:
    zero_sized = {
        name: (array.shape, str(array.dtype))
        for name, array in arrays.items()
        if array.size == 0
    }
    with open(os.path.join(directory, _ZERO_SIZED), "w", encoding="utf-8") as file:
        json.dump(zero_sized, file)
    state = {name: array for name, array in arrays.items() if name not in zero_sized}
    if state:  # Orbax refuses an empty tree, too.
        path = os.path.abspath(os.path.join(directory, _STATE))
        # OCDBT, the default: a handful of files whatever the number of tensors, where
        # plain zarr has two for each, and every file costs a flush to disk. Its names
        # may also be longer than a file system's.
        with _quiet_orbax(), ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path, state)


class _NotFromOrbax(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or "orbax" not in record.pathname


@contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Drop what Orbax logs, some thirty lines a checkpoint, through absl's logger.

    Only Orbax's records, and only during our own calls: whoever uses Orbax beside us
    set its level as they want it.
    """
    logger = logging.getLogger("absl")
    silence = _NotFromOrbax()
    logger.addFilter(silence)
    try:
        yield
    finally:
        logger.removeFilter(silence)


BACKEND: Backend = JaxBackend()
