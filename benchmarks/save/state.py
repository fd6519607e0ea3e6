"""The state that is saved: a model and its optimizer, of a wanted size.

Dense layers with Adam, trained for two steps: weights and slots hold numbers that no
compression shortens.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

BACKEND = keras.backend.backend()
LAYERS = 4
_BYTES = 12  # a parameter in float32, and Adam's two slots for it


def width_of(megabytes: float) -> int:
    """Width of as many layers as usual that makes so many megabytes of state."""
    return round((megabytes * 1e6 / _BYTES / LAYERS) ** 0.5)


def make_model(width: int, batch_size: int, layers: int = LAYERS) -> keras.Model:
    """A model that was trained for two steps, so that all its variables are there."""
    # Of `relu` some units would never be on, and zeros would be in Adam's slots.
    dense = [keras.layers.Dense(width, activation="tanh") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *dense])
    model.compile("adam", "mse")
    model.fit(*samples(model, 2 * batch_size), batch_size=batch_size, verbose=0)
    return model


def samples(model: keras.Model, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and targets."""
    generator = np.random.default_rng(1)
    x, y = generator.random((2, count, model.input_shape[-1]), dtype=np.float32)
    return x, y


def variables(model: keras.Model) -> dict[str, keras.Variable]:
    """What every way of saving has to bring back: weights and optimizer."""
    found = [*model.trainable_variables, *model.non_trainable_variables]
    found += model.optimizer.variables
    return {f"v{number:03d}": variable for number, variable in enumerate(found)}


def tensors(model: keras.Model) -> dict[str, Any]:
    """The backend's own tensors, where they are."""
    values = {name: variable.value for name, variable in variables(model).items()}
    if BACKEND == "torch":
        return {name: value.detach() for name, value in values.items()}
    return values


def assign(model: keras.Model, saved: Mapping[str, Any]) -> None:
    """Set all variables to the backend's own tensors, in the backend's own way."""
    if BACKEND == "torch":
        for name, value in tensors(model).items():
            value.copy_(saved[name])
    elif BACKEND == "tensorflow":
        for name, value in tensors(model).items():
            value.assign(saved[name])
    else:
        for name, variable in variables(model).items():
            variable.assign(saved[name])


def host_arrays(model: keras.Model) -> list[np.ndarray]:
    """Copies of all variables."""
    values = variables(model).values()
    return [np.array(keras.ops.convert_to_numpy(value)) for value in values]


def settle(model: keras.Model) -> None:
    """Wait until the device is done: no save is charged for a step before it."""
    if BACKEND == "jax":
        import jax

        jax.block_until_ready(tensors(model))
    elif BACKEND == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
    else:
        import tensorflow as tf

        tf.test.experimental.sync_devices()


def device() -> str:
    """What training runs on."""
    if BACKEND == "jax":
        import jax

        return jax.devices()[0].device_kind
    if BACKEND == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus[:1]]
    return details[0].get("device_name", "GPU") if details else "cpu"
