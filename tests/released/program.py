"""What is trained: by ``fit``, in a loop, and with variables alone.

Each training begins in an empty directory, or resumes; it is told where to look. A look
is what there is between two batches, to the last bit, and what it says is what has to
be as it was once a checkpoint is restored there.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from kill.capture import as_numpy, random_states
from kill.record import Record

import resilient

from . import native
from .looking import known, recorded, synced, values_of
from .values import Asked, Budget, Kinds, Spends

SAMPLES, BATCH, EPOCHS = 22, 4, 3  # six batches an epoch, the last one smaller
STEP = 9  # that the checkpoints are of: three batches into the second epoch

Tell = Callable[[Record], None]
Program = Callable[[Path, Tell], Record]


@keras.saving.register_keras_serializable("released")
class Remembers(keras.layers.Layer):
    """Keeps which samples it saw last: their numbers are the first feature."""

    def build(self, shape: Any) -> None:
        self.last = self.add_weight(
            shape=(SAMPLES,), initializer="zeros", trainable=False
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            numbers = keras.ops.cast(x[:, 0], "int32")
            self.last.assign(keras.ops.sum(keras.ops.one_hot(numbers, SAMPLES), axis=0))
        return x


def model(dropout: float = 0.4) -> keras.Model:
    """It draws in each batch, keeps statistics, and knows what it saw last."""
    net = keras.Sequential(
        [
            keras.Input((3,)),
            Remembers(),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(1),
        ]
    )
    net.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return net


def arrays(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).normal(size=(samples, 3)).astype("float32")
    x[:, 0] = np.arange(samples)
    return x, x.sum(axis=1, keepdims=True)


class Look(keras.callbacks.Callback):
    """Looks before one batch, ahead of other callbacks, and after those that follow.

    Args:
        before: Called before the batch.
        after: Called after this batch and each that follows.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        super().__init__()
        self._before, self._after = before, after
        self._batches = 0

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches = state["batches"]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._batches == STEP:
            self._before()
        self._batches += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._batches > STEP:
            self._after()


def fit(directory: Path, tell: Tell) -> Record:
    """``resilient.fit`` on shuffled arrays, with callbacks of every kind."""
    net, budget = model(), Budget()
    files = directory.with_name(f"{directory.name}-files")
    files.mkdir()
    callbacks = [*of_keras(files), Kinds(), Asked(), Spends(budget)]
    order: list[np.ndarray] = []

    def now() -> Record:
        synced(net)
        return recorded(
            model=values_of(net),
            random=random_states(),
            callbacks=[known(callback) for callback in callbacks],
            budget=budget.spent,
            history=net.history.history,
            log=(files / "log.csv").read_bytes(),
        )

    def after() -> None:
        synced(net)
        order.append(as_numpy(net.layers[0].last.value))

    resilient.fit(
        net,
        *arrays(),
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=arrays(6),
        callbacks=[Look(lambda: tell(now()), after), *callbacks],
        stateful={"budget": budget},
        checkpoint_dir=directory,
        save_freq=STEP,
        keep=9,
        verbose=0,
    )
    return now() | recorded(order=order)


def of_keras(files: Path) -> list[keras.callbacks.Callback]:
    every = keras.callbacks
    return [
        every.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
        every.ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=9.0),
        every.ModelCheckpoint(
            str(files / "best.weights.h5"),
            monitor="loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        every.CSVLogger(str(files / "log.csv")),
    ]


def loop(directory: Path, tell: Tell) -> Record:
    """``resilient.Run`` around a loop, with objects of several libraries."""
    net, budget, numbers = model(), Budget(), np.random.default_rng(3)
    net.train_on_batch(*arrays(BATCH))  # so that all its variables are there
    order: list[np.ndarray] = []
    objects = {"net": net, "budget": budget, "numbers": numbers, **native.objects()}
    run = resilient.Run(directory, save_freq=STEP, keep=9, verbose=0, **objects)

    def now() -> Record:
        return recorded(
            model=values_of(net),
            random=random_states(),
            budget=budget.spent,
            numbers=numbers,
            history=dict(run.history),
            native=native.values(run, objects),
        )

    for _, step, (x, y) in run.loop(arrays(), epochs=EPOCHS, batch_size=BATCH):
        if step == STEP:
            tell(now())
        if step >= STEP:
            order.append(as_numpy(x)[:, 0])
        budget.spend(step)
        native.step(run, objects)
        loss, _ = net.train_on_batch(x, y)
        drawn = float(keras.random.uniform(())) + np.random.rand() + random.random()
        run.log(loss=loss, drawn=drawn + numbers.random())
    return now() | recorded(order=order)


def variables_alone(directory: Path, tell: Tell) -> Record:
    """``resilient.Checkpoints``; where the data is the loop knows by itself."""
    net = model(dropout=0)  # random state is not among what is saved
    net.optimizer.build(net.trainable_variables)
    held = [*net.variables, *net.optimizer.variables]
    (x, y), last = arrays(), SAMPLES // BATCH

    def now() -> Record:
        return recorded(variables=[as_numpy(each.value) for each in held])

    with resilient.Checkpoints(directory, held, keep=9) as checkpoints:
        step = checkpoints.restore()
        while True:
            if step == STEP:
                checkpoints.save(step)
                tell(now())
            if step == EPOCHS * last:
                return now()
            rows = slice(step % last * BATCH, (step % last + 1) * BATCH)
            net.train_on_batch(x[rows], y[rows])
            step += 1


PROGRAMS: dict[str, Program] = {"fit": fit, "loop": loop, "variables": variables_alone}
