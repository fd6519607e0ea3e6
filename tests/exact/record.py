"""What a program leaves: every byte of it, taken with what Keras and Python offer."""

import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

Record = dict[str, str]


def take(**parts: Any) -> Record:
    """Flat, by name; equal texts are equal types and bytes."""
    parts["random numbers"] = draws()
    parts["files"] = dict(files(Path.cwd()))
    return dict(leaves(parts, ""))


def leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Leaves of nested values; of an object, what training changes."""
    value = opened(value)
    if isinstance(value, Mapping):
        yield path, f"{type(value).__name__} with keys {list(value)}"
        for key in value:
            yield from leaves(value[key], f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield path, f"{type(value).__name__} of {len(value)}"
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif isinstance(value, np.ndarray):
        yield path, f"{value.dtype}{list(value.shape)} {value.tobytes().hex()}"
    elif isinstance(value, bool | int | float | str | bytes | None):
        yield path, f"{type(value).__name__} {value!r}"
    elif isinstance(value, set | frozenset):
        yield path, f"{type(value).__name__} {sorted(map(repr, value))}"
    else:  # a callback's model has no bytes of its own
        yield path, f"an object of {type(value).__name__}"


def opened(value: Any) -> Any:
    """What is in an object: arrays, or a state of plain values."""
    if isinstance(value, keras.Model):
        optimizer = getattr(value, "optimizer", None)
        variables = [*value.variables, *getattr(optimizer, "variables", [])]
        return [opened(variable) for variable in variables]
    if isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.Metric):
        return [opened(variable) for variable in value.variables]
    if isinstance(value, keras.callbacks.Callback):
        known = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        return getattr(value, "state_dict", dict)() | known
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, keras.Variable) or hasattr(value, "dtype"):
        return as_numpy(value)
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return value


def as_numpy(tensor: Any) -> np.ndarray:
    """A copy of a tensor of a backend."""
    if str(tensor.dtype).startswith("key<"):  # JAX's random keys
        import jax

        tensor = jax.random.key_data(tensor)
    return np.array(keras.ops.convert_to_numpy(tensor))


def draws() -> dict[str, Any]:
    """What each global generator gives next."""
    found = {
        "python": random.random(),
        "numpy": np.random.random(3),
        "keras": as_numpy(keras.random.uniform((3,))),
    }
    if "torch" in sys.modules:
        import torch

        found["torch"] = torch.rand(3).numpy()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found["tensorflow"] = tf.random.uniform((3,)).numpy()
    return found


def files(directory: Path) -> Iterator[tuple[str, Any]]:
    """What callbacks wrote: bytes, or the arrays in weights."""
    import h5py

    for file in sorted(directory.rglob("*")):
        if file.suffix == ".h5":
            found: dict[str, np.ndarray] = {}

            def visit(name: str, item: Any, found: Any = found) -> None:
                if isinstance(item, h5py.Dataset):
                    found[name] = np.asarray(item)

            with h5py.File(file) as opened_file:
                opened_file.visititems(visit)
            yield file.name, found
        elif file.is_file():
            yield file.name, file.read_bytes()
