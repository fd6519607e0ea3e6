"""JAX: written in Orbax's layout, see ``jax_files``.

On the CPU a snapshot copies nothing: it holds the arrays' buffers, and XLA does not
reuse a buffer that someone else holds. On an accelerator it holds copies made there,
which are transferred to the host while training goes on.

Of an array that is spread over devices a snapshot holds the shards that this process
owns, and a restore reads those that its devices need: no process ever has all of it.
Process 0 holds, and writes, an array that all devices have a replica of.

Refuses typed PRNG keys and sparse arrays. JAX has no global random state.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from resilient.backends import jax_files
from resilient.backends.arrays import (
    check_like,
    check_stored,
    copy_array,
    not_stored,
    spread_elements,
)
from resilient.backends.base import Backend, HeldTensors, KeepCompiled, Peeked
from resilient.backends.jax_files import Shards
from resilient.backends.stored import StoredTensor
from resilient.errors import NotSupportedError


class JaxBackend:
    """The adapter of JAX."""

    name: ClassVar[str] = "jax"
    spreads: ClassVar[bool] = True

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: HeldTensors | None = None
    ) -> HeldTensors:
        process = jax.process_index()
        values = _values(tensors)
        if process:
            _check_owners(values)
        mine = {name: _held(value, process) for name, value in values.items()}
        held = {name: each for name, each in mine.items() if each is not None}
        # After all copies were started: training waits for those.
        for each in held.values():
            for piece in each.owned.values() if isinstance(each, Shards) else (each,):
                if isinstance(piece, jax.Array):
                    piece.copy_to_host_async()
        return jax_files.Held(held)

    def require_like(self, target: Any, value: Any) -> None:
        if not isinstance(target, keras.Variable):
            raise NotSupportedError(
                "A JAX array cannot be changed in place.",
                received=f"{type(target).__name__}",
                hint="Keep the array in a keras.Variable.",
            )
        current = target.value
        check_like(target, current.shape, current.dtype, value)

    def assign(self, target: Any, value: Any) -> None:
        self.require_like(target, value)
        new = like(target.value, value)
        with warnings.catch_warnings():
            # A Keras variable declared int64 holds int32 while x64 is off: JAX warns at
            # each assignment.
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            target.assign(new)

    def random_state(self) -> dict[str, Any]:
        return {}

    def set_random_state(self, state: dict[str, Any]) -> None:
        pass

    def peek(self, tensors: Mapping[str, Any], most: int) -> Peeked:
        values = _values(tensors)
        if any(value.is_deleted() for value in values.values()):
            return lambda: None  # given away by a loop's own step
        arrays = [value.addressable_data(0) for value in values.values()]
        arrays = [  # of a device, the next step may overwrite it
            each if _on_host(each) else each.reshape(-1)[:: max(1, each.size // most)]
            for each in arrays
        ]

        def read() -> list[np.ndarray] | None:
            if any(each.is_deleted() or not each.is_ready() for each in arrays):
                return None
            return spread_elements([_transient_view(each) for each in arrays], most)

        return read

    def keep_compiled(self) -> KeepCompiled | None:
        chosen = jax.config.jax_compilation_cache_dir is not None
        chosen |= not jax.config.jax_enable_compilation_cache
        return None if chosen else _keeping_compiled

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "jaxlib": version("jaxlib")}


@contextlib.contextmanager
def _keeping_compiled(directory: str) -> Iterator[None]:
    """See ``Backend.keep_compiled``. JAX keys programs by the processor as well."""
    asked = {
        "jax_compilation_cache_dir": directory,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        # Further caches have files of their own, which nobody verifies.
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    before = {name: getattr(jax.config, name) for name in asked}
    _configure(asked)
    try:
        yield
    finally:
        _configure(before)


def _configure(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # otherwise JAX keeps to the first directory


def _values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays behind tensors; refuses before anything is transferred."""
    values = {name: _value(name, tensor) for name, tensor in tensors.items()}
    check_stored({name: value.dtype for name, value in values.items()})
    return values


def _value(name: str, tensor: Any) -> Any:
    value = tensor.value if isinstance(tensor, keras.Variable) else tensor
    if isinstance(value, np.ndarray | np.generic):
        return copy_array(name, np.asarray(value))
    if not isinstance(value, jax.Array):
        why = "For a typed PRNG key, save jax.random.key_data(key)."
        raise not_stored(name, type(value).__name__, why)
    return value


def _transient_view(array: jax.Array) -> np.ndarray:
    """An array's memory; one that the array itself keeps would cost its reuse."""
    return np.asarray(memoryview(array) if array.dtype.isbuiltin == 1 else array)


def _check_owners(values: Mapping[str, Any]) -> None:
    """Refuse an array that only this process has."""
    for name, value in values.items():
        if isinstance(value, jax.Array) and value.is_fully_addressable:
            raise NotSupportedError(
                f"The tensor {name!r} is not shared by all processes.",
                received=f"in process {jax.process_index()}: {value.sharding}",
                hint="Set a keras.distribution over the devices of all processes "
                "before you create the model.",
            )


def _held(value: Any, process: int) -> Any:
    """What this process writes of an array; None: nothing, since process 0 does."""
    if isinstance(value, np.ndarray):
        return value
    if value.size and not value.is_fully_replicated:
        return _owned(value)
    if process:
        return None
    if not value.size:  # its shards may be smaller still
        return np.empty(value.shape, value.dtype)
    return _hold(value.addressable_data(0))


def _owned(array: jax.Array) -> Shards:
    """The shards whose device, of those that have the same, has replica 0.

    So each element has one owner, and processes need not ask each other.
    """
    owned = {
        tuple(each.start or 0 for each in shard.index): _hold(shard.data)
        for shard in array.addressable_shards
        if shard.replica_id == 0
    }
    shape = array.sharding.shard_shape(array.shape)
    return Shards(array.shape, np.dtype(array.dtype), shape, owned)


def _hold(array: jax.Array) -> Any:
    """The bytes of an array on one device, which no training step changes."""
    return np.asarray(array) if _on_host(array) else jnp.copy(array)


def _on_host(array: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in array.devices())


def like(current: jax.Array, value: np.ndarray | StoredTensor) -> jax.Array:
    """A value, as ``backends.read`` returns it, on devices like the current one."""
    if len(current.sharding.device_set) > 1:
        return _spread(current, value)
    # Committed to a device only if the old array was, or training would recompile.
    where = current.sharding if current.committed else None
    return jax.device_put(_constant(np.asarray(value)), where)


def _spread(current: jax.Array, value: Any) -> jax.Array:
    """Made of the slices for this process's devices; others are not involved."""
    value = value if isinstance(value, StoredTensor) else _constant(value)
    slices: dict[str, np.ndarray] = {}

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        key = str(index)  # several devices may have replicas of one slice
        if key not in slices:
            slices[key] = value[index]
        return slices[key]

    return jax.make_array_from_callback(
        current.shape, current.sharding, part, dtype=current.dtype
    )


def _constant(value: np.ndarray) -> np.ndarray:
    """JAX may read the memory later, or keep it: nobody may write to it."""
    return value.copy() if value.flags.writeable else value


BACKEND: Backend = JaxBackend()
