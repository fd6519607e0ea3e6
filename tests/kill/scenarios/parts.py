"""Data and models that scenarios share: 52 images of 8 x 8, in 7 batches of 8."""

from typing import Any

import keras
import numpy as np
from keras import layers

from .registry import Case

SAMPLES = 52
CLASSES = 3


def numbers() -> np.random.RandomState:
    """A generator for data: never the global one, whose state is under test."""
    return np.random.RandomState(0)


def images(count: int = SAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of shape (count, 8, 8, 1) and their classes."""
    random = np.random.RandomState(seed)
    x = random.rand(count, 8, 8, 1).astype("float32")
    return x, random.randint(0, CLASSES, count)


def rows(count: int = SAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The same as rows of shape (count, 64)."""
    x, y = images(count, seed)
    return x.reshape(count, 64), y


def validation() -> tuple[np.ndarray, np.ndarray]:
    return images(20, seed=1)


def noisy(shape: tuple[int, ...] = (8, 8, 1)) -> keras.Sequential:
    """A built model whose every batch draws random numbers."""
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.GaussianNoise(0.1),
            layers.Dropout(0.3),
            layers.Dense(8, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def compiled(model: keras.Model, optimizer: Any = None, **settings: Any) -> keras.Model:
    """Compile for classification; without XLA on TensorFlow, which is slow at it."""
    if keras.backend.backend() == "tensorflow":
        settings = {"jit_compile": False} | settings
    settings = {"metrics": ["accuracy"]} | settings
    model.compile(
        optimizer or keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **settings,
    )
    return model


def case(model: keras.Model, args: Any = None, **kwargs: Any) -> Case:
    """A case on images: three epochs, a batch size of 8, silent."""
    defaults = {"epochs": 3, "batch_size": 8, "verbose": 0}
    return Case(model, images() if args is None else args, defaults | kwargs)
