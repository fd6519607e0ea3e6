"""JAX: written as Orbax does, as a flat PyTree in ``state/``.

``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads it. It is
written through TensorStore, Orbax's own library below: in one transaction, uncompressed
and without a flush of its own, which takes half of Orbax's time at 100 MB and a quarter
at 1 MB.

On the CPU a snapshot copies nothing: it holds the arrays' buffers, and XLA does not
take over a buffer that someone else holds. On an accelerator it holds copies made
there, and their transfer to the host goes on beside the training.

Refuses typed PRNG keys, sparse arrays, and arrays whose shards live in other processes.
JAX has no global random state.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorstore as ts

from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    HeldSnapshot,
    check_dtype,
    check_like,
    check_names,
    copy_array,
)
from resilient.backends.base import JSON, Backend, Snapshot
from resilient.errors import NotSupportedError, describe

_STATE = "state"
_METADATA = "_METADATA"
# Files are flushed when the checkpoint is sealed, all at once.
_CONTEXT = ts.Context({"file_io_sync": False})
_MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})
_ALIGNMENT = 64  # bytes; less, and JAX copies
_SMALL = 1 << 18  # bytes; opening a TensorStore takes longer than copying so many


class JaxBackend:
    """The adapter of JAX."""

    name: ClassVar[str] = "jax"

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
        return HeldSnapshot(held, _write, np.asarray)

    def read(
        self, directory: str, verified: Callable[[], None] = lambda: None
    ) -> dict[str, np.ndarray]:
        verified()
        path = os.path.abspath(os.path.join(directory, _STATE))
        with open(os.path.join(path, _METADATA), encoding="utf-8") as file:
            names = _names(json.load(file))
        opening = {
            name: ts.open(
                {"driver": "zarr", "kvstore": _database(path, name)},
                open=True,
                context=_MAPPED,
            )
            for name in names
        }
        stored = {name: each.result() for name, each in opening.items()}
        arrays = {
            name: _aligned(each.shape, each.dtype.numpy_dtype)
            for name, each in stored.items()
        }
        reading = [ts.array(arrays[name]).write(stored[name]) for name in names]
        for each in reading:
            each.result()
        for array in arrays.values():
            array.flags.writeable = False
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


def _database(path: str, name: str = "") -> dict[str, Any]:
    """Where TensorStore finds all arrays, or the array ``name``."""
    return {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{path}/"},
        "path": f"{name}/" if name else "",
        # Metadata of arrays stays where OCDBT has a checksum for it.
        "config": {"max_inline_value_bytes": 1024},
    }


def _write(tensors: Mapping[str, Any], directory: str) -> None:
    path = os.path.abspath(os.path.join(directory, _STATE))
    os.mkdir(path)
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    database = ts.KvStore.open(_database(path), context=_CONTEXT).result()
    with ts.Transaction() as transaction:
        _write_arrays(arrays, database.with_transaction(transaction))
    with open(os.path.join(path, _METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(list(arrays))))


def _write_arrays(arrays: Mapping[str, np.ndarray], database: ts.KvStore) -> None:
    """Write as the zarr driver does; the small ones past it."""
    writing: list[ts.Future[Any]] = []
    opening: dict[str, ts.Future[ts.TensorStore]] = {}
    for name, array in arrays.items():
        if array.nbytes > _SMALL:
            opening[name] = ts.open(
                {
                    "driver": "zarr",
                    "metadata": _zarr_metadata(array),
                    # Zeros must not come back as negative zeros.
                    "store_data_equal_to_fill_value": True,
                },
                kvstore=database / f"{name}/",
                create=True,
                context=_CONTEXT,
            )
            continue
        metadata = json.dumps(_zarr_metadata(array)).encode()
        writing.append(database.write(f"{name}/.zarray", metadata))
        if array.size:
            chunk = ".".join("0" * array.ndim) or "0"
            writing.append(database.write(f"{name}/{chunk}", array.tobytes()))
    for name, store in opening.items():
        # Copied nowhere: the array stays as it is until the transaction is over.
        written = store.result().write(
            arrays[name], can_reference_source_data_indefinitely=True
        )
        writing.append(written.copy)
    for each in writing:
        each.result()


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that JAX can take as it is, in NumPy's large pages."""
    nbytes = dtype.itemsize * math.prod(shape)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(shape)


def _zarr_metadata(array: np.ndarray) -> dict[str, Any]:
    """One chunk, the array's own bytes."""
    name = array.dtype.name
    return {
        "zarr_format": 2,
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "dimension_separator": ".",
        "dtype": name if name in EXTENSION_DTYPES else array.dtype.str,
        "shape": list(array.shape),
        "chunks": [max(1, size) for size in array.shape],
    }


def _tree_metadata(names: list[str]) -> dict[str, Any]:
    """What Orbax wants to know of a flat dictionary of NumPy arrays."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": 2}],
            "value_metadata": value,
        }
        for name in names
    }
    return {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": False}


def _names(metadata: dict[str, Any]) -> list[str]:
    leaves = metadata["tree_metadata"].values()
    return [leaf["key_metadata"][0]["key"] for leaf in leaves]


BACKEND: Backend = JaxBackend()
