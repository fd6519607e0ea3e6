"""Every argument of Keras's callbacks, and another value of it.

A script has one callback of a class for each of its arguments, and each of them writes
to a file of its own. The changed script gives each the other value of its argument.
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from typing import Any

import keras

from .scripts import Fit, arrays

BACKEND = keras.backend.backend()


def halves(epoch: int, rate: float) -> float:
    return rate * 0.5


def tenths(epoch: int, rate: float) -> float:
    return rate * 0.1


def say_nothing(*_: Any, **__: Any) -> None:
    pass


def also_nothing(*_: Any, **__: Any) -> None:
    pass


def light() -> keras.Model:
    keras.utils.set_random_seed(5)
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1e-3, use_ema=True)
    net.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    return net


def validated() -> dict[str, Any]:
    given = arrays()
    return given | {"validation_data": (given["x"], given["y"])}


def class_of(name: str) -> type[keras.callbacks.Callback]:
    return getattr(keras.callbacks, name.partition(" ")[0])


@dataclass(frozen=True)
class Class:
    """Callbacks of one class.

    Attributes:
        changes: By argument, two values.
        given: What each of them gets as well.
        along: What one of them gets beside that, by its argument.
        place: The argument that names a file or directory, and its ending.
        needs: A library.
        backends: Where it is tested.
    """

    changes: dict[str, tuple[Any, Any]]
    given: dict[str, Any] = field(default_factory=dict)
    along: dict[str, dict[str, Any]] = field(default_factory=dict)
    place: tuple[str, str] | None = None
    needs: str = "keras"
    backends: tuple[str, ...] = ("tensorflow", "jax", "torch")

    def made(self, name: str, chosen: int) -> list[keras.callbacks.Callback]:
        """One for each argument, with the first or the second value of it."""
        cls = class_of(name)
        return [
            cls(**self._given(argument) | {argument: values[chosen]})
            for argument, values in self.changes.items()
            if argument in signature(cls).parameters  # of this Keras
        ]

    def _given(self, argument: str) -> dict[str, Any]:
        place = {self.place[0]: argument + self.place[1]} if self.place else {}
        return place | self.given | self.along.get(argument, {})


MONITORED = {
    "patience": (50, 60),
    "verbose": (0, 1),
}
HOOKS = {
    f"on_{when}": (say_nothing, also_nothing)
    for when in (
        *("epoch_begin", "epoch_end", "train_begin", "train_end"),
        *("train_batch_begin", "train_batch_end"),
    )
}
CLASSES = {
    "BackupAndRestore": Class(
        {
            "backup_dir": ("one", "two"),
            "save_freq": ("epoch", 1),
            "double_checkpoint": (False, True),
            "delete_checkpoint": (True, False),
        },
        place=("backup_dir", ""),
    ),
    "CSVLogger": Class(
        {
            "filename": ("one.csv", "two.csv"),
            "separator": (",", ";"),
            "append": (False, True),
        },
        place=("filename", ".csv"),
    ),
    "EarlyStopping": Class(
        MONITORED
        | {
            "baseline": (None, 0.5),
            "restore_best_weights": (False, True),
            "start_from_epoch": (0, 2),
        },
        {"monitor": "loss", "patience": 50},
    ),
    "LambdaCallback": Class(HOOKS),
    "LearningRateScheduler": Class(
        {"schedule": (halves, tenths), "verbose": (0, 1)}, {"schedule": halves}
    ),
    "ModelCheckpoint": Class(
        {
            "filepath": ("one.weights.h5", "two.weights.h5"),
            "verbose": (0, 1),
            "save_best_only": (False, True),
            "save_weights_only": (True, True),
            "save_freq": ("epoch", 1),
            "initial_value_threshold": (None, 1e-9),
        },
        {"monitor": "loss", "save_weights_only": True, "save_best_only": True},
        # Keras does not know the mode before the first epoch ends.
        {"save_freq": {"save_best_only": False}},
        place=("filepath", ".weights.h5"),
    ),
    "ReduceLROnPlateau": Class(
        MONITORED | {"factor": (0.5, 0.2), "cooldown": (0, 5), "min_lr": (0.0, 0.05)},
        {"monitor": "loss", "patience": 50},
    ),
    "RemoteMonitor": Class(
        {
            "root": ("http://localhost:9", "http://127.0.0.1:9"),
            "path": ("/one", "/two"),
            "field": ("one", "two"),
            "headers": (None, {"a": "b"}),
            "send_as_json": (False, True),
        },
        {"root": "http://localhost:9"},
        needs="requests",
    ),
    "SwapEMAWeights": Class({"swap_on_epoch": (False, True)}),
    "TensorBoard": Class(
        {
            "histogram_freq": (0, 1),
            "write_images": (False, True),
            "write_steps_per_second": (False, True),
            "update_freq": ("epoch", 1),
            "profile_batch": (0, 1000),
            "embeddings_freq": (0, 1),
            "embeddings_metadata": (None, "words.tsv"),
        },
        place=("log_dir", ""),
        needs="tensorboard",
        backends=("tensorflow",),
    ),
    "TensorBoard without a graph": Class(
        {"write_graph": (True, False)},
        place=("log_dir", ""),
        needs="tensorboard",
        backends=("tensorflow",),
    ),
    # Which warns of it.
    "TensorBoard elsewhere": Class(
        {"log_dir": ("one", "two")}, needs="tensorboard", backends=("tensorflow",)
    ),
    "TerminateOnNaN": Class({"raise_error": (False, True)}),
}


def _fit(name: str, chosen: int) -> Fit:
    known = CLASSES[name]
    args = validated if name in ("EarlyStopping", "SwapEMAWeights") else arrays
    return Fit(light, args, lambda: known.made(name, chosen))


TESTED = {
    name: known
    for name, known in CLASSES.items()
    if BACKEND in known.backends and find_spec(known.needs)
}
BASES = {name: _fit(name, 0) for name in TESTED}
CHANGED = {name: (name, _fit(name, 1)) for name in TESTED}
ROWS = [
    f"{name}.{argument}"
    for name, known in TESTED.items()
    for argument in known.changes
    if argument in signature(class_of(name)).parameters
]
# Refused: tests/objects. Tested by tests/kill/scenarios, with the library it needs.
ELSEWHERE = {
    f"{name}.{argument}"
    for name in ("EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau")
    for argument in ("monitor", "mode", "min_delta")
} | {
    f"OrbaxCheckpoint.{argument}"
    for argument in signature(
        getattr(keras.callbacks, "OrbaxCheckpoint", lambda: None)
    ).parameters
}

# What of a callback training with the former value has made of it already.
MADE = {
    "EarlyStopping.baseline": {"wait"},
    "ModelCheckpoint.initial_value_threshold": {"best", "files"},
    "CSVLogger.separator": {"files"},  # earlier rows stay as they are
    **{row: {"files"} for row in ROWS if row.startswith("TensorBoard")},
}
