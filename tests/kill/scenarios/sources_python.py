"""Sources of data: generators, and iterables with state_dict and load_state_dict."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

from .parts import CLASSES, compiled, images, noisy, rows
from .registry import Case, source

Batch = tuple[Any, ...]


def case(data: Any, **kwargs: Any) -> Case:
    """A case on batches made in Python: three epochs, silent, no callback that draws.

    The harness's callback draws from the generators that the data draws from.
    """
    defaults = {"epochs": 3, "verbose": 0}
    model = kwargs.pop("model", None) or compiled(noisy())
    return Case(model, (data,), defaults | kwargs, recorded=False)


def drawn(random: Any = np.random, count: int = 21) -> Iterator[Batch]:
    """Batches of 8 drawn at random; seven of them are an epoch."""
    x, y = images()
    for _ in range(count):
        chosen = random.randint(0, len(x), 8)
        yield x[chosen], y[chosen]


def once(count: int) -> Iterator[Batch]:
    """Batches of 8 in their order, with sample weights, then the end."""
    x, y = images(8 * count)
    for low in range(0, len(x), 8):
        rows = slice(low, low + 8)
        yield x[rows], y[rows], np.linspace(0.5, 1.5, 8, dtype="float32")


@source()
def generator_of_global_random_numbers() -> Case:
    """It can be drawn again only from the random state that it was begun in.

    It has as many batches as are trained: how many more are drawn ahead on TensorFlow,
    and where that leaves the global generators, depends on threads.
    """
    np.random.rand(5)
    return case(drawn(), steps_per_epoch=7)


@source("train_batch_end@0:5", "train_batch_end@1:0", "epoch_begin@2")
def generator_that_ends() -> Case:
    """Later epochs get the two batches that Keras drew ahead, and no more."""
    return case(once(7))


@source()
def generator_that_ends_amid_an_epoch() -> Case:
    """With steps_per_epoch Keras begins another iterator, of two batches."""
    return case(once(12), steps_per_epoch=7)


@source(backends=("tensorflow", "jax"))
def generator_in_several_steps() -> Case:
    """A generator with a seed of its own, three batches in each execution."""
    model = compiled(noisy(), steps_per_execution=3)
    data = drawn(np.random.RandomState(3), 1000)
    return case(data, steps_per_epoch=7, model=model)


@source(
    "train_batch_end@1:2",
    "test_batch_end@1:1",
    "epoch_begin@2",
    backends=("jax", "torch"),
)
def validated_on_a_generator() -> Case:
    """Each evaluation goes on in the generator after two old batches."""
    return _validated()


@source(
    *("train_batch_end@1:2", "test_batch_end@1:1", "epoch_begin@2"),
    backends=("tensorflow",),
    in_keras=False,
)
def validated_on_a_generator_without_prefetch() -> Case:
    """Keras loses what was prefetched when an evaluation ends: never the same twice."""
    return _validated()


def _validated() -> Case:
    validation = drawn(np.random.RandomState(5), 1000)
    data = drawn(np.random.RandomState(4))
    return case(
        *(data,), steps_per_epoch=7, validation_data=validation, validation_steps=4
    )


@source(backends=("tensorflow", "jax"), slow=["jax"])
def generator_of_sparse_batches() -> Case:
    """scipy's matrices, which Keras converts; batches drawn ahead are kept as such."""
    model = keras.Sequential(
        [
            keras.Input((64,), sparse=True),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(CLASSES),
        ]
    )
    return case(_sparse(), steps_per_epoch=7, model=compiled(model, jit_compile=False))


def _sparse() -> Iterator[Batch]:
    import scipy.sparse

    x, y = rows()
    x[x < 0.7] = 0
    random = np.random.RandomState(6)
    while True:
        chosen = random.randint(0, len(x), 8)
        yield scipy.sparse.csr_matrix(x[chosen]), y[chosen]


class Shuffled:
    """A user's own data: another order in each epoch, and noise from a generator."""

    def __init__(self) -> None:
        self.x, self.y = images()
        self.epoch, self.batch = 0, 0
        self.noise = np.random.default_rng(7)

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Batch]:
        order = np.random.RandomState(self.epoch).permutation(len(self.x))
        while self.batch < len(self):
            chosen = order[8 * self.batch : 8 * self.batch + 8]
            self.batch += 1
            x = self.x[chosen]
            yield x + 0.1 * self.noise.random(x.shape, "float32"), self.y[chosen]
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        noise = self.noise.bit_generator.state
        return {"epoch": self.epoch, "batch": self.batch, "noise": noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.noise.bit_generator.state = state["noise"]


class Stream:
    """A user's own data, its own iterator; draws from the global generator."""

    def __init__(self) -> None:
        self.x, self.y = images()
        self.given = np.zeros(len(self.x), int)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Batch:
        if self.given.sum() == 21 * 8:
            raise StopIteration
        chosen = np.random.randint(0, len(self.x), 8)
        np.add.at(self.given, chosen, 1)
        weights = 1 / self.given[chosen]
        return self.x[chosen], self.y[chosen], weights.astype("float32")

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


@source(
    *("train_batch_end@0:5", "train_batch_end@1:6", "epoch_begin@2"),
    in_keras=False,
    in_exact=True,
)
def iterable_with_a_length() -> Case:
    return case(Shuffled())


@source(in_keras=False)
def iterable_of_global_random_numbers() -> Case:
    return case(
        Stream(), steps_per_epoch=7, validation_data=Shuffled(), validation_steps=3
    )
