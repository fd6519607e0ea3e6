"""Sources of data: keras.utils.PyDataset."""

import random
from typing import Any

import keras
import numpy as np

from . import parts
from .registry import Case, source


class Images(keras.utils.PyDataset):
    """The images of ``parts`` in batches of 8, whose rows say how they were made."""

    def __init__(self, *, infinite: bool = False, **workers: Any) -> None:
        super().__init__(**workers)
        self.x, self.y = parts.images()
        self.indices = np.arange(len(self.x))
        self.infinite = infinite

    @property
    def num_batches(self) -> int | None:
        return None if self.infinite else 7

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        rows = self.indices[8 * (index % 7) : 8 * (index % 7) + 8]
        return self.x[rows], self.y[rows]


class Augmented(Images):
    """Draws from numpy's and Python's global generators for each batch."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        x, y = super().__getitem__(index)
        return x + random.random() + np.random.normal(size=x.shape) * 0.1, y


class Reshuffled(Images):
    """Reshuffles after each epoch, with a generator of its own; in place or not."""

    def __init__(self, *, in_place: bool = True, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rng = np.random.default_rng(3)
        self.python = random.Random(4)
        self.in_place = in_place
        self.names = [f"image-{i}" for i in range(len(self.x))]
        self.begun = 0

    def on_epoch_begin(self) -> None:
        self.begun += 1
        self.offset = self.python.random() + np.random.random()

    def on_epoch_end(self) -> None:
        if self.in_place:
            self.rng.shuffle(self.indices)
        else:
            self.indices = self.rng.permutation(len(self.x))
        self.python.shuffle(self.names)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        x, y = super().__getitem__(index)
        number = int(self.names[index % 7].removeprefix("image-"))
        begun = getattr(self, "offset", 0.0) + self.begun
        return x + (number + begun) / 50, y


class Counting(Images):
    """Every batch depends on how many were made, and on some of them."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.made = 0
        self.cache: dict[int, np.ndarray] = {}
        self.noise = np.random.RandomState(5)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        x, y = super().__getitem__(index)
        self.made += 1
        if index not in self.cache:
            self.cache[index] = self.noise.normal(size=x.shape)
        return x + self.made / 30 + self.cache[index], y


class Stateful(Counting):
    """The same, with its own way to give its state."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "made": self.made,
            "cache": self.cache,
            "noise": self.noise.get_state(legacy=False),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made, self.cache = state["made"], state["cache"]
        self.noise.set_state(state["noise"])


class Seeded(Images):
    """Augmentation as several workers need it: seeded with the batch's index."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        x, y = super().__getitem__(index)
        rng = np.random.default_rng([index, int(self.indices[0])])
        return x + rng.normal(size=x.shape) * 0.1, y


class SeededReshuffled(Seeded):
    """And reshuffled at the end of each epoch."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rng = np.random.default_rng(3)

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.indices)


SHARED = np.random.default_rng(5)


class Reaching(Images):
    """Draws from a generator in its module and one in a closure; spawns others."""

    def __init__(self, **workers: Any) -> None:
        super().__init__(**workers)
        rng = random.Random(np.random.randint(1000))
        self.noise = lambda: rng.random() * 0.1
        self.shared = SHARED

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        x, y = super().__getitem__(index)
        (child,) = SHARED.spawn(1)
        noise = SHARED.normal(size=x.shape) + child.normal(size=x.shape)
        return x + noise * 0.1 + self.noise(), y


def _case(data: keras.utils.PyDataset, **kwargs: Any) -> Case:
    model = parts.compiled(parts.noisy())
    # On TensorFlow another thread makes the batches: the Recorder would race with it.
    alone = keras.backend.backend() != "tensorflow"
    defaults = {"epochs": 3, "verbose": 0}
    return Case(model, (data,), defaults | kwargs, recorded=alone)


@source(in_exact=True)
def pydataset_augmented() -> Case:
    """Shuffled by Keras, with random augmentation and weights of classes."""
    return _case(Augmented(workers=0), class_weight={0: 1.0, 1: 2.0, 2: 0.5})


@source(in_exact=True)
def pydataset_reshuffled() -> Case:
    """Hooks that change attributes, in place, and draw from everywhere."""
    return _case(Reshuffled(workers=0), shuffle=False)


@source("train_batch_end@0:3", "train_batch_end@1:0", "train_batch_end@2:3")
def pydataset_counting_not_dividing() -> Case:
    """Every batch changes attributes; the iterator is held across epochs."""
    return _case(Counting(workers=0), steps_per_epoch=5, epochs=4)


@source()
def pydataset_infinite_stateful() -> Case:
    """No length, and state_dict."""
    return _case(Stateful(workers=0, infinite=True), steps_per_epoch=5)


@source()
def pydataset_validation() -> Case:
    """Validation data that reshuffles, has state, and draws."""
    return _case(
        Images(workers=0),
        validation_data=Reshuffled(workers=0, in_place=False),
        validation_steps=3,
    )


@source()
def pydataset_shared_generator() -> Case:
    """Validation data that draws from the generator that the training data draws from.

    It is made after an epoch, when that generator has gone on.
    """
    return _case(Reaching(workers=0), validation_data=Reaching(workers=0))


# How far ahead Keras's threads are when an epoch ends is chance. Where a batch was
# taken before training began it uses what they had made later, and leaves others out.
_KERAS_IS_EXACT = keras.backend.backend() == "tensorflow"


@source("train_batch_end@0:3", "train_batch_end@1:1", "train_batch_end@2:3")
def pydataset_threads_infinite() -> Case:
    """Two threads on a dataset without length, reshuffled."""
    data = Seeded(workers=2, infinite=True, max_queue_size=2)
    return _case(data, steps_per_epoch=5)


@source(in_keras=_KERAS_IS_EXACT)
def pydataset_processes() -> Case:
    """Two processes."""
    data = Seeded(workers=2, use_multiprocessing=True, max_queue_size=3)
    return _case(data, validation_data=Seeded(workers=2))


# Whether Keras makes a batch before or after on_epoch_end is chance, too.
@source(
    "train_batch_end@0:3",
    "train_batch_end@1:0",
    "train_batch_end@2:3",
    in_keras=False,
)
def pydataset_threads_reshuffled() -> Case:
    """Two threads on a dataset that reshuffles; the iterator is held across epochs."""
    return _case(SeededReshuffled(workers=2), steps_per_epoch=5, epochs=4)
