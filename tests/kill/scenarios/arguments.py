"""Arguments of ``fit`` and ``compile``: order, weights, validation, steps."""

import keras
import numpy as np
from support import BACKENDS

from .parts import case, compiled, images, noisy, numbers, validation
from .registry import Case, scenario


@scenario("train_batch_end@1:3", in_exact=True)
def dense() -> Case:
    return case(compiled(noisy()), validation_data=validation())


@scenario("train_batch_end@1:1", "train_batch_end@2:4", in_exact=True)
def one_bad_sample() -> Case:
    """Its loss is no number, and soon no weight is."""
    weights = np.ones(52, "float32")
    weights[43] = np.nan
    return case(compiled(noisy()), sample_weight=weights)


@scenario("epoch_begin@1", "train_batch_end@1:5", save_freq="epoch", in_exact=True)
def shuffled_in_batches_with_class_weight() -> Case:
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    return case(compiled(noisy()), shuffle="batch", class_weight=weights)


@scenario("test_batch_end@0:0", "train_batch_end@1:0", save_freq=1, in_exact=True)
def weighted_validation_steps() -> Case:
    x, y = validation()
    data = (x, y, numbers().rand(20).astype("float32"))
    model = compiled(noisy(), keras.optimizers.AdamW(0.01, clipnorm=1.0))
    return case(
        model,
        validation_data=data,
        validation_steps=2,
        validation_batch_size=6,
        validation_freq=[1, 3],
    )


@scenario("train_batch_end@1:2", "train_batch_end@3:0", save_freq=2, in_exact=True)
def fewer_steps_than_batches() -> Case:
    """Epochs of 3 batches over 7: an iterator spans epochs and ends within one."""
    return case(compiled(noisy()), epochs=5, steps_per_epoch=3)


@scenario("epoch_end@0", "train_batch_end@1:6", save_freq=3, in_exact=True)
def as_many_steps_as_batches() -> Case:
    return case(compiled(noisy()), steps_per_epoch=7, validation_data=validation())


@scenario("train_batch_end@2:2", save_freq=2)
def initial_epoch() -> Case:
    rate = keras.callbacks.LearningRateScheduler(_falling)
    found = case(compiled(noisy()), initial_epoch=1, epochs=4)
    found.callbacks.append(rate)
    return found


def _falling(epoch: int, rate: float) -> float:
    return rate * 0.9


@scenario(
    "train_batch_end@1:6", save_freq=5, backends=("tensorflow", "jax"), in_exact=True
)
def whole_epoch_per_execution() -> Case:
    return case(compiled(noisy(), steps_per_execution=7), epochs=4)


@scenario("train_batch_end@1:1", "train_batch_end@1:4", save_freq=2, slow=BACKENDS)
def run_eagerly() -> Case:
    return case(compiled(noisy(), run_eagerly=True), epochs=2)


@scenario("train_batch_end@1:3", backends=("tensorflow", "jax"))
def jit_compile() -> Case:
    return case(compiled(noisy(), jit_compile=True), validation_data=validation())


@scenario("train_batch_end@0:5", "train_batch_end@2:3", save_freq=2, in_exact=True)
def moving_average() -> Case:
    """EMA that overwrites the weights every 5 steps and at the end."""
    optimizer = keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5
    )
    return case(compiled(noisy(), optimizer))


@scenario("train_batch_end@3:0", save_freq=2, slow=BACKENDS)
def one_batch_per_epoch() -> Case:
    return case(compiled(noisy()), images(8), epochs=5)


@scenario("train_batch_end@1:50", save_freq=7, slow=BACKENDS)
def batch_of_one() -> Case:
    """Batches of one sample and no metrics."""
    x, y = images()
    return case(compiled(noisy(), metrics=None), (x, y), epochs=2, batch_size=1)


@scenario("train_batch_end@1:0", save_freq=1, slow=BACKENDS)
def default_batch_size() -> Case:
    """No batch size given: Keras takes 32; an epoch is a full and a short batch."""
    return case(compiled(noisy()), batch_size=None, validation_data=validation())


@scenario("train_batch_end@1:0", "epoch_end@1", save_freq=2)
def not_a_number() -> Case:
    """TerminateOnNaN ends the run in epoch 1."""
    x, y = images()
    found = case(compiled(noisy(), keras.optimizers.Adagrad(0.01)), (x, y), epochs=4)
    found.callbacks += [
        keras.callbacks.LearningRateScheduler(_explode),
        keras.callbacks.TerminateOnNaN(),
    ]
    return found


def _explode(epoch: int, rate: float) -> float:
    return rate if epoch < 1 else float(np.float32(1e38))
