"""What one process of several does between its start and its death.

``python worker.py ORDER`` does it, as one process of a launcher's, or of a ``gang``.
"""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from kill import attempt, capture, record
from kill.callbacks import Recorder
from kill.points import Killer, Point
from kill.scenarios.registry import Case
from own_data import BACKEND, OWN_DATA
from support import fatal
from support.waited import wait_for_each_save, wait_for_the_first_save

from resilient.keras_internals.multi_worker import corrected

MODEL = ("model", "both")  # layouts that divide variables
EPOCHS, BATCHES, LOCAL = 3, 6, 4  # batches of an epoch; rows of a process's batch


@dataclass(frozen=True)
class Order:
    """What all processes of a gang do, as JSON.

    Attributes:
        home: The run's directory: attempts of one run share it.
        out: Name of the record's file, in ``home``, without the process's number.
        seed: Of every global random number generator.
        mode: ``"keras"`` for ``model.fit``, ``"resilient"`` for ours.
        layout: How Keras distributes: ``"data"``, ``"model"`` or ``"both"``, in two
            parts each; or ``"reversed"``, as ``"data"``, of layers that are used in
            another order than they are made.
        kills: By a process's number, the point where it is killed, see ``install``.
        options: Arguments of ours: save_freq, keep.
        background: Whether training goes on while a checkpoint is written.
        once: A file: nobody is killed where it is there, and it is made.
    """

    home: str
    out: str
    seed: int
    mode: str = "resilient"
    layout: str = "data"
    kills: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    background: bool = False
    once: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Order":
        return cls(**json.loads(text))


def perform(order: Order) -> None:
    """Train as ordered, then write the record."""
    index = int(os.environ["RANK"])
    files = Path(order.home, f"files-{index}")
    files.mkdir(parents=True, exist_ok=True)
    os.chdir(files)
    attempt.use_one_thread()
    scope = join(order.layout)
    attempt.seed_all(order.seed)
    case = make_case(order.layout, scope)
    text = order.kills.get(str(index))
    if order.once is not None and not first_here(Path(order.once), index):
        text = None
    killer, calls = install(text)
    case.kwargs["callbacks"] = [*case.callbacks, killer]
    history = fit(order, case)
    about = {"trained": killer.where.trained, "calls": list(calls)}
    found = capture.take(case, history, files)
    out = Path(order.home, f"{order.out}-{index}")
    out.with_suffix(".json").write_text(json.dumps(about))
    record.save(found, out)


def first_here(mark: Path, index: int) -> bool:
    """Whether this process is the first of its number to ask."""
    try:
        mark.with_name(f"{mark.name}-{index}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def join(layout: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Find the other processes; the scope in which a model is to be made."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
        return tf.distribute.MultiWorkerMirroredStrategy().scope
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if OWN_DATA:
        keras.distribution.initialize()
        keras.distribution.set_distribution(distribution(layout))
    return contextlib.nullcontext


def distribution(layout: str) -> Any:
    if layout not in MODEL:
        return keras.distribution.DataParallel(auto_shard_dataset=False)
    devices = keras.distribution.list_devices()
    parts = 1 if layout == "model" else 2
    shape = parts, len(devices) // parts
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*wide/kernel"] = (None, "model")
    layouts[".*wide/bias"] = ("model",)
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )


class Reversed(keras.Model):
    """Gradients arrive in the order of its layers, and not from the last to the first.

    They are large enough for more than one bucket of ``DistributedDataParallel``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.layers.Dense(units) for units in (3, 400, 300, 500)]

    def call(self, x: Any) -> Any:
        for part in reversed(self.parts):
            x = part(x)
        return x


def make_case(
    layout: str, scope: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Case:
    with scope():
        model = (
            Reversed()
            if layout == "reversed"
            else keras.Sequential(
                [
                    keras.Input((6,)),
                    keras.layers.Dense(8, name="wide"),
                    # PyTorch cannot mask what a BatchNormalization gives there.
                    keras.layers.LayerNormalization()
                    if layout == "both"
                    else keras.layers.BatchNormalization(),
                    keras.layers.Dropout(0.3),
                    keras.layers.Dense(3),
                ]
            )
        )
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    count, index = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    parts = {"model": 1, "both": 2}.get(layout, count) if OWN_DATA else count
    part = index * parts // count
    batch = LOCAL if OWN_DATA else LOCAL * count
    random = np.random.RandomState(0)
    rows = BATCHES * LOCAL * parts
    x, y = random.rand(rows, 6).astype("float32"), random.randint(0, 3, rows)
    some = slice(0, 4 * count)
    validation = x[some], y[some]
    if OWN_DATA:
        x, y = x[part::parts], y[part::parts]
        validation = tuple(each[part::parts] for each in validation)
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_loss",
        patience=20,
        # Keras cannot read weights that no process has the whole of.
        restore_best_weights=layout not in MODEL,
    )
    settings = {
        "epochs": EPOCHS,
        "batch_size": batch,
        "validation_data": validation,
        "verbose": 0,
    }
    return Case(model, (x, y), settings, [stopping, Recorder()])


def fit(order: Order, case: Case) -> keras.callbacks.History:
    if order.mode == "keras":
        with corrected(case.model):
            return case.model.fit(*case.args, **case.kwargs)
    import resilient

    if order.background:
        wait_for_the_first_save()
    else:
        wait_for_each_save()
    warnings.simplefilter("error", resilient.NotExactWarning)
    directory = Path(order.home, "checkpoints")
    return resilient.fit(
        case.model, *case.args, checkpoint_dir=directory, **order.options, **case.kwargs
    )


def install(text: str | None) -> tuple[Killer, list[str]]:
    """Let this process be killed, and log its file system calls.

    Places are those of ``support.fatal`` and points those of ``kill.points``.
    """
    calls = fatal.install(text)
    if calls is None:
        return Killer(Point.parse(text)), fatal.count_calls(None)
    return Killer(None), calls


if __name__ == "__main__":
    perform(Order.from_json(sys.argv[1]))
