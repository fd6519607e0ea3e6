"""Callbacks: each one that Keras ships and has state, and users' own."""

import keras
from support import BACKENDS

from ..callbacks import (
    EpochRecorder,
    Fading,
    Plain,
    StopAt,
    Swapping,
)
from .parts import case, compiled, images, noisy, validation
from .registry import Case, scenario

MANY = ("train_batch_end@1:3", "epoch_end@2", "train_batch_end@3:5")


def _falling(epoch: int, rate: float) -> float:
    return rate * 0.9


# Ends a run at the same epoch in whatever order a version of Keras gives the data.
NEVER_BETTER = {"min_delta": 9}


@scenario(*MANY, save_freq=3, in_exact=True)
def all_at_once() -> Case:
    """Early stopping ends this run before its last epoch."""
    x, y = images()
    model = compiled(noisy(), keras.optimizers.Adam(0.05))
    found = case(model, (x, y), epochs=7, validation_data=(x, (y + 1) % 3))
    found.callbacks += [
        keras.callbacks.EarlyStopping(
            patience=2, restore_best_weights=True, start_from_epoch=2, **NEVER_BETTER
        ),
        keras.callbacks.ReduceLROnPlateau(
            monitor="loss", patience=0, min_delta=0.2, cooldown=1, factor=0.5
        ),
        keras.callbacks.LearningRateScheduler(_falling),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint(
            "every-{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3
        ),
        keras.callbacks.ModelCheckpoint(
            "best.weights.h5", save_weights_only=True, save_best_only=True
        ),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        keras.callbacks.History(),
    ]
    return found


@scenario("epoch_end@1/first", "epoch_end@1", save_freq="epoch", slow=BACKENDS)
def best_weights() -> Case:
    """Validation gets worse from the start: the best weights are early ones."""
    x, y = images()
    model = compiled(noisy(), keras.optimizers.Adam(0.1))
    found = case(model, (x, y), epochs=6, validation_data=(x, (y + 1) % 3))
    found.callbacks += [
        keras.callbacks.EarlyStopping(
            patience=3, restore_best_weights=True, **NEVER_BETTER
        ),
        keras.callbacks.CSVLogger("log.csv", separator=";"),
        keras.callbacks.ModelCheckpoint(
            "best-{epoch}.weights.h5", save_weights_only=True, save_best_only=True
        ),
    ]
    return found


@scenario("train_batch_end@1:2", "epoch_end@2", "train_end", save_freq=2, in_exact=True)
def swapped_moving_average() -> Case:
    """SwapEMAWeights for each epoch's end; the average replaces the weights there."""
    optimizer = keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=None
    )
    found = case(compiled(noisy(), optimizer), validation_data=validation())
    found.callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    return found


@scenario("train_batch_end@0:3", "train_batch_end@1:5", save_freq=2, in_exact=True)
def plain_attributes() -> Case:
    found = case(compiled(noisy()))
    found.callbacks.append(Plain())
    return found


@scenario(
    "train_batch_end@0:4",
    "train_batch_end@1:5",
    "epoch_end@1",
    save_freq=2,
    slow=["jax"],
)
def attributes_of_eager_steps() -> Case:
    """No variables, and not traced: a callback changes what each step reads anew."""
    model = noisy()
    model.add(keras.layers.Dropout(0.5, name="fading"))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    found = case(compiled(model, optimizer, run_eagerly=True))
    found.callbacks.append(Fading())
    return found


@scenario("train_batch_end@1:3", "epoch_end@1", save_freq=2, slow=BACKENDS)
def optimizer_of_a_callback() -> Case:
    """Every attempt swaps it alike, before the state is put back."""
    found = case(compiled(noisy()))
    found.callbacks.append(Swapping())
    return found


@scenario("train_batch_end@1:1", "epoch_end@1", save_freq=2, in_exact=True)
def stops_in_mid_epoch() -> Case:
    found = case(compiled(noisy()), epochs=4, validation_data=validation())
    found.callbacks.append(StopAt(epoch=1, batch=3))
    return found


@scenario("epoch_end@0", "epoch_end@2", save_freq=3)
def asynchronous() -> Case:
    """No callback looks at batches: Keras dispatches their hooks on a thread."""
    found = case(compiled(noisy()), validation_data=validation())
    found.callbacks.append(EpochRecorder())
    found.recorded = False
    return found


@scenario("train_batch_end@1:3", save_freq=2, backends=("tensorflow",), slow=BACKENDS)
def tensorboard() -> Case:
    found = case(compiled(noisy()), validation_data=validation())
    found.callbacks.append(
        keras.callbacks.TensorBoard("board", write_graph=False, update_freq=2)
    )
    found.clocks = frozenset({"_train_accumulated_time", "_epoch_start_time"})
    return found
