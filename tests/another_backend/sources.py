"""Trains on each kind of data that is not arrays, and keeps what a kill would leave.

``main(DIRECTORY)`` leaves them for other backends: ``DIRECTORY/KIND`` is then a run as
it was in mid-epoch, and ``DIRECTORY/KIND.json`` says which samples each batch of it had
to the end.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import keras
import numpy as np
import tensorflow as tf
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import resilient
from resilient.storage.layout import committed_steps

SAMPLES, BATCH = 22, 4
EPOCH, EPOCHS = 6, 3
SAVED = EPOCH + 2  # steps

X = np.random.RandomState(0).normal(size=(SAMPLES, 3)).astype("float32")
X[:, 0] = np.arange(SAMPLES)
Y = X[:, :1] / SAMPLES


class Counts(keras.layers.Layer):
    """Knows which samples the last batch had: their numbers are their first value."""

    def build(self, shape: Any) -> None:
        self.last = self.add_weight(
            shape=(SAMPLES,), initializer="zeros", trainable=False
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            numbers = keras.ops.cast(x[:, 0], "int32")
            self.last.assign(keras.ops.sum(keras.ops.one_hot(numbers, SAMPLES), 0))
        return x


class Watch(keras.callbacks.Callback):
    """Notes the samples of each batch; may copy a run once a step is saved."""

    def __init__(self, run: Path, copy: Path | None = None) -> None:
        super().__init__()
        self.batches: list[list[int]] = []
        self._run, self._copy = run, copy
        # A resumed run is copied with a later one than it began with.
        self._copied = max(committed_steps(run), default=SAVED - 1) + 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        last = np.asarray(keras.ops.convert_to_numpy(self.model.layers[0].last.value))
        self.batches.append(np.flatnonzero(last).tolist())
        if self._copy is not None and len(self.batches) == SAVED + 3:
            while max(committed_steps(self._run), default=0) < self._copied:
                time.sleep(0.01)
            shutil.copytree(self._run, self._copy)


class Rows:
    """The samples by their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return X[i], Y[i]


class Batches(keras.utils.PyDataset):
    """Shuffles the samples at the end of each epoch; Keras shuffles the batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order, self.generator = np.arange(SAMPLES), np.random.default_rng(4)

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[i * BATCH : (i + 1) * BATCH]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        self.generator.shuffle(self.order)


class Tensors(Batches):
    """With the backend's own tensors."""

    def __getitem__(self, i: int) -> Any:
        return tuple(map(keras.ops.convert_to_tensor, super().__getitem__(i)))


class Drawn(torch.utils.data.IterableDataset):
    """Draws its order from NumPy's global generator."""

    def __iter__(self) -> Iterator[Any]:
        for i in np.random.permutation(SAMPLES):
            yield X[i], Y[i]


def slices() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def from_python() -> tf.data.Dataset:
    """It has no state that can be saved."""
    signature = tf.TensorSpec((3,)), tf.TensorSpec((1,))
    found = tf.data.Dataset.from_generator(
        lambda: zip(X, Y, strict=True), output_signature=signature
    )
    return found.shuffle(9, seed=3).batch(BATCH)


def drawing() -> tf.data.Dataset:
    """It draws random numbers."""

    def noisy(x: Any, y: Any) -> Any:
        return x, y + tf.random.uniform((), seed=5)

    return slices().shuffle(9).map(noisy).batch(BATCH)


def endless() -> Iterator[Any]:
    while True:
        order = np.random.permutation(SAMPLES)
        for i in range(0, SAMPLES, BATCH):
            yield X[order[i : i + BATCH]], Y[order[i : i + BATCH]]


def loader(**options: Any) -> DataLoader:
    return DataLoader(Rows(), batch_size=BATCH, shuffle=True, **options)


KINDS: dict[str, Callable[[], Any]] = {
    "tf.data": lambda: slices().shuffle(9, seed=3).batch(BATCH),
    "tf.data unseeded, cached": lambda: slices().cache().shuffle(9).batch(BATCH),
    "tf.data repeated": lambda: slices().shuffle(9, seed=3).batch(BATCH).repeat(),
    "tf.data from Python": from_python,
    "tf.data drawing": drawing,
    "DataLoader": loader,
    "DataLoader, workers": lambda: loader(num_workers=1),
    "DataLoader, generator": lambda: loader(generator=torch.Generator().manual_seed(3)),
    "DataLoader, iterable": lambda: DataLoader(Drawn(), batch_size=BATCH),
    "StatefulDataLoader": lambda: StatefulDataLoader(
        Rows(), batch_size=BATCH, shuffle=True
    ),
    "PyDataset": Batches,
    "generator": endless,
    "Grain": lambda: grain.MapDataset.source(Rows()).shuffle(seed=3).batch(BATCH),
    "Grain, iterated": lambda: (
        grain.MapDataset.source(Rows()).shuffle(seed=3).to_iter_dataset().batch(BATCH)
    ),
}

REPLAYED = ("tf.data from Python", "tf.data drawing")
ENDLESS = ("tf.data repeated", "generator")


def model() -> keras.Model:
    net = keras.Sequential([keras.Input((3,)), Counts(), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    return net


def train(
    kind: str,
    run: Path,
    copy: Path | None = None,
    *,
    save_freq: int = SAVED,
    **options: Any,
) -> list[list[int]]:
    """Train, or resume; the samples of all batches.

    Args:
        kind: Of data.
        run: For the checkpoints.
        copy: For what there is once a new one is committed.
        save_freq: Steps between them.
        **options: Of ``resilient.fit``.
    """
    keras.utils.set_random_seed(7)
    torch.manual_seed(7)
    net, watch = model(), Watch(run, copy)
    resilient.fit(
        net,
        KINDS[kind](),
        epochs=EPOCHS,
        steps_per_epoch=EPOCH if kind in ENDLESS else None,
        callbacks=[watch],
        verbose=0,
        checkpoint_dir=run,
        save_freq=save_freq,
        **options,
    )
    return watch.batches


def main(directory: str) -> None:
    for kind in KINDS:
        copy = Path(directory, kind)
        batches = train(kind, Path(directory, "whole", kind), copy)
        Path(f"{copy}.json").write_text(json.dumps(batches))
