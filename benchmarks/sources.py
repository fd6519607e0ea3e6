"""One small data set as every kind of source that Keras's fit takes."""

import importlib.util
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

FEATURES = 16


def batch(index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch `index`: x of shape (size, 16), float32, and y of shape (size,)."""
    x = np.full((size, FEATURES), index % 977, "float32") / 977
    return x, np.full(size, index % 3)


class Batches(keras.utils.PyDataset):
    """The batches as a PyDataset."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.count, self.size = count, size

    @property
    def num_batches(self) -> int:
        """How many there are."""
        return self.count

    def __getitem__(self, index: int) -> Any:
        return batch(index, self.size)


def arrays(count: int, size: int) -> Any:
    """Two arrays."""
    return tuple(np.concatenate(part) for part in zip(*_all(count, size), strict=True))


def py_dataset(count: int, size: int) -> Any:
    """A keras.utils.PyDataset."""
    return Batches(count, size)


def generator(count: int, size: int) -> Any:
    """A Python generator."""
    return (batch(index, size) for index in range(count))


def tf_data(count: int, size: int) -> Any:
    """A shuffled tf.data pipeline: samples, buffer of 10 batches, batches."""
    import tensorflow as tf

    data = tf.data.Dataset.range(count * size).shuffle(10 * size, seed=1)
    data = data.map(
        lambda i: (tf.fill((FEATURES,), tf.cast(i % 977, tf.float32)), i % 3),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return data.batch(size).prefetch(2)


def tf_data_of_python(count: int, size: int) -> Any:
    """A tf.data pipeline of a Python function: it has no state that can be saved."""
    import tensorflow as tf

    def tensors(index: Any) -> Any:
        x, y = tf.numpy_function(
            lambda i: batch(i, size), [index], [tf.float32, tf.int64]
        )
        return tf.ensure_shape(x, (size, FEATURES)), tf.ensure_shape(y, (size,))

    return tf.data.Dataset.range(count).map(tensors).prefetch(2)


def torch_loader(count: int, size: int) -> Any:
    """A shuffling torch DataLoader without workers."""
    from torch.utils.data import DataLoader

    return DataLoader(_torch_samples(count, size), size, shuffle=True)


def stateful_loader(count: int, size: int) -> Any:
    """A shuffling StatefulDataLoader of torchdata, without workers."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(_torch_samples(count, size), size, shuffle=True)


def grain(count: int, size: int) -> Any:
    """A shuffled Grain MapDataset."""
    import grain.python as pygrain

    samples = pygrain.MapDataset.range(count * size).shuffle(seed=1)
    return samples.map(_sample).batch(size)


SOURCES: dict[str, tuple[Callable[[int, int], Any], tuple[str, ...]]] = {
    "arrays": (arrays, ()),
    "PyDataset": (py_dataset, ()),
    "tf.data": (tf_data, ("tensorflow",)),
    "tf.data of Python": (tf_data_of_python, ("tensorflow",)),
    "torch DataLoader": (torch_loader, ("torch",)),
    "StatefulDataLoader": (stateful_loader, ("torchdata",)),
    "Grain MapDataset": (grain, ("grain",)),
    "generator": (generator, ()),
}


def available() -> list[str]:
    """Sources whose libraries are installed here."""
    return [
        name
        for name, (_, needs) in SOURCES.items()
        if all(importlib.util.find_spec(module) for module in needs)
    ]


def _all(count: int, size: int) -> list[Any]:
    return [batch(index, size) for index in range(count)]


def _sample(index: int) -> tuple[np.ndarray, np.int64]:
    return np.full(FEATURES, index % 977, "float32"), np.int64(index % 3)


def _torch_samples(count: int, size: int) -> Any:
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return count * size

        def __getitem__(self, index: int) -> Any:
            return torch.full((FEATURES,), index % 977 / 977), index % 3

    return Samples()
