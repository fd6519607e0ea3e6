"""Models: convolutions, unbuilt and subclassed ones, many inputs, own state."""

from typing import Any

import keras
import numpy as np
from keras import layers

from .parts import CLASSES, SAMPLES, case, compiled, images, numbers, rows, validation
from .registry import Case, scenario


@scenario(
    "epoch_end@0",
    "train_batch_end@1:3",
    "test_batch_end@1:0",
    save_freq=3,
    in_exact=True,
)
def convolution() -> Case:
    """Augmentation, convolution, BatchNormalization and dropout.

    First resumed at a batch that is smaller than the others.
    """
    return _convolution()


@scenario("epoch_end@0", "train_batch_end@1:3", backends=("torch",), slow=("torch",))
def torch_compile() -> Case:
    """The same, compiled: for half a minute in each process."""
    return _convolution(jit_compile=True)


def _convolution(**compiling: Any) -> Case:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomFlip(),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.SpatialDropout2D(0.2),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    return case(compiled(model, **compiling), validation_data=validation())


@scenario("train_batch_end@0:3", "train_batch_end@1:3", save_freq=2, in_exact=True)
def unbuilt_sequential() -> Case:
    model = keras.Sequential(
        [
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dense(CLASSES),
        ]
    )
    return case(compiled(model))


class Subclassed(keras.Model):
    """Builds on its first batch; one layer only exists once it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = layers.Flatten()
        self.dropout = layers.Dropout(0.3)
        self.blocks = [layers.Dense(8, activation="relu"), layers.Dense(CLASSES)]

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.dropout(self.flatten(x), training=training)
        for block in self.blocks:
            x = block(x)
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x


class OwnStep(Subclassed):
    """A step of its own: nothing builds it symbolically."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@scenario("train_batch_end@0:3", "train_batch_end@1:4", backends=("tensorflow",))
def width_that_only_batches_know() -> Case:
    """Run as Python, on shuffled windows whose length tf.data does not know."""
    series = numbers().rand(60).astype("float32")
    windows = {"sequence_length": 10, "batch_size": 8, "shuffle": True, "seed": 4}
    data = keras.utils.timeseries_dataset_from_array(
        series, numbers().randint(0, CLASSES, 50), **windows
    )
    assert data.element_spec[0].shape[1] is None
    model = compiled(OwnStep(), run_eagerly=True)
    return Case(model, (data,), {"epochs": 3, "verbose": 0})


class Overriding(Subclassed):
    """Overrides ``fit`` and calls Keras's."""

    def fit(self, x: Any, y: Any, **kwargs: Any) -> Any:
        return super().fit(x * 2.0, y, **kwargs)


@scenario("train_batch_end@1:4", save_freq="epoch")
def overridden_fit() -> Case:
    return case(compiled(Overriding()))


@scenario("train_batch_end@1:3", save_freq=2, in_exact=True)
def inputs_and_outputs_in_lists() -> Case:
    a, b = keras.Input((64,)), keras.Input((64,))
    hidden = layers.Dense(8)(layers.Average()([a, layers.GaussianNoise(0.2)(b)]))
    model = keras.Model([a, b], [layers.Dense(1)(hidden), layers.Dense(2)(hidden)])
    model.compile(
        keras.optimizers.Adamax(0.01),
        ["mse", "mae"],
        jit_compile=keras.backend.backend() == "jax",
    )
    (x, _), (other, _) = rows(), rows(seed=4)
    return case(model, ([x, other], [x[:, :1], other[:, :2]]), shuffle="batch")


@scenario("train_batch_end@1:3", save_freq=2, in_exact=True)
def frozen_layers() -> Case:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, trainable=False),
            layers.BatchNormalization(trainable=False),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(CLASSES),
        ]
    )
    return case(compiled(model, keras.optimizers.Adafactor(0.01)))


@scenario("train_batch_end@1:3", save_freq=2)
def normalization_and_embedding() -> Case:
    """Adapted statistics, integer inputs and weights shared by two layers."""
    random = numbers()
    words = random.randint(0, 20, (SAMPLES, 6))
    embed = layers.Embedding(20, 4)
    sequence = keras.Input((6,), dtype="int32")
    vectors = layers.Dropout(0.3)(embed(sequence))
    hidden = layers.LayerNormalization()(layers.Flatten()(vectors))
    model = keras.Model(sequence, layers.Dense(CLASSES)(hidden))
    return case(compiled(model), (words, random.randint(0, CLASSES, SAMPLES)))


@scenario("train_batch_end@1:3", save_freq=2, backends=("torch",))
def torch_modules() -> Case:
    """Buffers of torch modules are no Keras variables; their dropout draws globally."""
    import torch

    module = torch.nn.Sequential(torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3))
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.TorchModuleWrapper(module),
            layers.Dense(CLASSES),
        ]
    )
    return case(compiled(model), validation_data=validation())


@scenario("train_batch_end@0:4", "train_batch_end@1:0", save_freq=2)
def bfloat16() -> Case:
    """Variables themselves in bfloat16."""
    keras.config.set_dtype_policy("bfloat16")
    from .parts import noisy

    x, y = images()
    return case(compiled(noisy()), (x.astype(np.float64), y), epochs=2)
