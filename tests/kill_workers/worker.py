"""What one process of several does between its start and its death.

``python worker.py ORDER`` does it in a fresh interpreter, as one process of
a launcher's; ``gang_server`` forks processes that do it.
"""

import contextlib
import errno
import json
import os
import re
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
from kill.points import Killer, Point, count_calls, die
from kill.scenarios.registry import Case
from own_data import BACKEND, OWN_DATA
from support.waited import waiting

from resilient.distributed.group import Together
from resilient.keras_internals.multi_worker import corrected
from resilient.saving.checkpointer import Checkpointer

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
        compile_once(jax)
    if OWN_DATA:
        keras.distribution.initialize()
        keras.distribution.set_distribution(distribution(layout))
    return contextlib.nullcontext


def compile_once(jax: Any) -> None:
    """Let each process have a cache of its own for what it compiles.

    Only the first one writes to a cache, and it compiles other programs.
    """
    from jax._src import compiler, distributed

    cache = jax.config.jax_compilation_cache_dir
    if cache is None:
        return
    jax.config.update("jax_compilation_cache_dir", f"{cache}-{os.environ['RANK']}")
    real, state = compiler._cache_write, distributed.global_state

    def write(*args: Any) -> None:
        number, state.process_id = state.process_id, 0
        try:
            real(*args)
        finally:
            state.process_id = number

    compiler._cache_write = write


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

    if not order.background:
        Checkpointer.save = waiting(Checkpointer.save)  # type: ignore[method-assign]
    warnings.simplefilter("error", resilient.NotExactWarning)
    directory = Path(order.home, "checkpoints")
    return resilient.fit(
        case.model, *case.args, checkpoint_dir=directory, **order.options, **case.kwargs
    )


def install(text: str | None) -> tuple[Killer, list[str]]:
    """Let this process be killed at a point, and log its file system calls.

    Points are those of ``kill.points``, and besides:

    * ``broadcast committed@2`` before it sends, or gets, that topic for the 2nd time
    * ``gather part@2``         before it contributes to that topic for the 2nd time
    * ``publish@2``             before it makes a checkpoint of what is staged, and
      ``published@2`` right after it, for the 2nd time
    * ``no space@17``           not killed: the 17th flush, and all after it, find no
      space
    """
    event, _, at = (text or "").partition("@")
    calls = count_calls(int(at) if event == "call" else None)
    method, _, topic = event.partition(" ")
    if method in ("broadcast", "gather"):
        die_before(method, topic, int(at))
    elif event in ("publish", "published"):
        die_at_rename(int(at), after=event == "published")
    elif event == "no space":
        fill_disk(int(at))
    elif text is not None and event != "call":
        return Killer(Point.parse(text)), calls
    return Killer(None), calls


def die_before(method: str, topic: str, number: int) -> None:
    """Die before this process says or hears something for the n-th time."""
    real, left = getattr(Together, method), [number]

    def call(self: Together, about: str, value: Any = None) -> Any:
        left[0] -= about == topic
        if not left[0]:
            die()
        return real(self, about, value)

    setattr(Together, method, call)


def die_at_rename(number: int, *, after: bool) -> None:
    """Die where a staging directory gets the name of a checkpoint."""
    real, left = os.rename, [number]

    def rename(source: Any, target: Any) -> None:
        left[0] -= bool(re.fullmatch(r"step-\d+", Path(target).name))
        if not left[0] and not after:
            die()
        real(source, target)
        if not left[0]:
            die()

    os.rename = rename


def fill_disk(number: int) -> None:
    """From the n-th flush on nothing gets onto the disk."""
    real, left = os.fsync, [number]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    os.fsync = fsync


if __name__ == "__main__":
    perform(Order.from_json(sys.argv[1]))
