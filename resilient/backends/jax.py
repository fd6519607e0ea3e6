"""JAX: written as Orbax does, see ``orbax_format``.

On the CPU a snapshot copies nothing: it holds the arrays' buffers, and XLA does not
take over a buffer that someone else holds. On an accelerator it holds copies made
there, and their transfer to the host goes on beside the training.

Refuses typed PRNG keys, sparse arrays, and arrays whose shards live in other processes.
JAX has no global random state.
"""

import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import keras
import numpy as np

from resilient.backends import orbax_format
from resilient.backends.arrays import (
    HeldSnapshot,
    check_dtype,
    check_like,
    check_names,
    copy_array,
)
from resilient.backends.base import ALONE, JSON, Backend, Part, Snapshot
from resilient.errors import NotSupportedError, describe


class JaxBackend:
    """The adapter of JAX."""

    name: ClassVar[str] = "jax"
    divides: ClassVar[bool] = True
    compares: ClassVar[str] = ""

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: Snapshot | None = None
    ) -> Snapshot:
        check_names(tensors)
        values = {name: _value(name, tensor) for name, tensor in tensors.items()}
        away = {name: v for name, v in values.items() if not _on_host(v)}
        held = {
            name: np.asarray(value) if isinstance(value, jax.Array) else value
            for name, value in values.items()
            if name not in away
        }
        if away:
            held |= _copied_on_device(away)
        return HeldSnapshot(held, orbax_format.write, np.asarray)

    def read(self, directory: str, part: Part = ALONE) -> dict[str, np.ndarray]:
        return orbax_format.read(directory)

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
        # JAX may read the memory it is given later, or keep it. Committed to a device
        # only if the old array was: otherwise training would compile again.
        mine = value.copy() if value.flags.writeable else value
        new = jax.device_put(mine, current.sharding if current.committed else None)
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
        return copy_array(name, np.asarray(value))
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


def _on_host(value: Any) -> bool:
    return isinstance(value, np.ndarray) or all(
        device.platform == "cpu" for device in value.devices()
    )


def _copied_on_device(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Copies that no training step can take over, on their way to the host."""
    # One by one: they need not all be on the same devices.
    copies = {name: jnp.copy(array) for name, array in arrays.items()}
    for each in copies.values():
        each.copy_to_host_async()
    return copies


BACKEND: Backend = JaxBackend()
