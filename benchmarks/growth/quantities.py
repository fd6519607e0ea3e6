"""What grows: for each quantity, what is measured at a size, all else held small.

Directories are made by the library's own writers. Peers are some of `benchmarks/save`,
and the managers of many checkpoints; none keeps events, history or rollbacks, or saves
callbacks.
"""

import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import managers
import numpy as np
import state
from names import MEMORY
from saves import REPEATS, Samples, memory, of_subjects, timed

import resilient
from resilient.objects.callbacks.capture import CallbackStates
from resilient.policies import latest
from resilient.progress import Progress
from resilient.report.facts import read_facts
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.telemetry.attempts import last_attempt, read_attempts
from resilient.telemetry.events import Events
from resilient.training import rollback
from resilient.training.fit.attempt import FitAttempt
from resilient.training.loop.history import LogHistory

_BATCHES = 30


def events(size: int, directory: Path) -> Samples:
    """Lines of events.jsonl, of one attempt."""
    one = Events(directory / "one")
    one_line = _recorded(one, directory / "one", "saved")
    with open(_recorded(one, directory / "one", "started"), "rb") as file:
        started = file.read().splitlines(keepends=True)[-1]
    line = one_line.read_bytes().splitlines(keepends=True)[0]
    run = directory / "run"
    run.mkdir()
    with open(run / "events.jsonl", "wb") as file:
        file.write(started)
        file.writelines(line for _ in range(size - 1))
    return {
        "start": timed(lambda: last_attempt(read_attempts(run))),
        "one more": timed(lambda: Events(run).emit("x")),
        "resilient report": timed(lambda: read_facts(run).to_json(), 1),
    }


def _recorded(recorder: Events, directory: Path, event: str) -> Path:
    directory.mkdir(exist_ok=True)
    progress = Progress(100, 1, 0)._asdict()
    costs = {"nbytes": 10**6, "seconds": 0.1, "stall": 0.01, "pruned": [70]}
    recorder.emit(event, **progress, **costs, finished=False, postponed=False)
    return directory / "events.jsonl"


def checkpoints(size: int, directory: Path) -> Samples:
    """Checkpoints in the directory, all of which are kept."""
    directory = directory / "run"
    directory.mkdir()
    store, keep = Store(directory), latest(size + REPEATS)
    _commit(store, 0)
    first = Checkpoint.read(directory / layout.committed_name(0))
    for step in range(1, size):  # a commit would wait for the disk each time
        path = directory / layout.committed_name(step)
        path.mkdir()
        made = replace(first, progress=Progress(step, 0, step))
        (path / layout.MANIFEST).write_bytes(made.to_bytes())
    store.prune(keep)
    steps = iter(range(size, size + REPEATS))

    def save() -> None:
        _commit(store, next(steps))
        store.prune(keep)

    return {
        "save": timed(save),
        "resilient ls": timed(store.checkpoints, 3),
        "resume": timed(lambda: store.load_newest(lambda found: found)),
    } | managers.measured(size, directory.parent)


def _commit(store: Store, step: int) -> None:
    with store.staging(Progress(step, 0, step)) as staging:
        store.commit(
            staging,
            staging.seal([]),
            metrics={"loss": 1.0, "val_loss": 1.0},
            finished=False,
            environment={},
        )


class _Many(keras.layers.Layer):
    """A layer of so many variables."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def build(self, input_shape: Any) -> None:
        """Create them."""
        self._all = [self.add_weight(shape=(1,)) for _ in range(self._size)]

    def call(self, inputs: Any) -> Any:
        """Use the first one only, for a small step."""
        return inputs * self._all[0]


def variables(size: int, directory: Path) -> Samples:
    """Variables, a third of them weights and the others Adam's."""
    model = _model(_Many(max(1, size // 3)))
    return of_subjects(model, directory) | _boundary(model, directory / "fit")


def megabytes(size: int, directory: Path) -> Samples:
    """Megabytes of state, in few variables."""
    model = state.make_model(state.width_of(size), 8)
    # A virtual machine is slow to get memory, and the first subject would pay for all.
    take = f"b'x' * {3 * size * 10**6}"
    subprocess.run([sys.executable, "-c", take], check=True)
    return of_subjects(model, directory)


def _model(layer: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


class _Counter(keras.callbacks.Callback):
    """A callback with some state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.best = 0, {"loss": [0.0]}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """It changes."""
        self.epochs += 1
        self.best["loss"][0] = epoch


def callbacks(size: int, directory: Path) -> Samples:
    """Callbacks, each with attributes that change."""
    model = _model(_Many(1))
    given = [_Counter() for _ in range(size)]
    for callback in given:
        callback.set_model(model)
    states = CallbackStates(given)
    for callback in given:
        callback.on_epoch_end(0)
    captured, _ = states.capture({})
    return {
        "save": timed(lambda: states.capture({})),
        "resume": timed(lambda: states.restore(captured, {})),
    } | _boundary(model, directory, given)


def history(size: int, directory: Path) -> Samples:
    """Epochs in Keras's History, and numbers that a loop logged under one name."""
    callback = keras.callbacks.History()
    callback.on_train_begin()
    states = CallbackStates([callback])
    callback.history["loss"] = np.random.default_rng(1).random(size).tolist()
    loop = LogHistory()
    for step in range(size):
        loop.add(step, {"loss": 1.0})
    return {
        "save, of fit": timed(lambda: states.capture({})),
        "save, of a loop": timed(loop.capture),
        "one more, of a loop": timed(lambda: loop.add(size, {"loss": 1.0})),
    }


def rollbacks(size: int, directory: Path) -> Samples:
    """Rollbacks that a run has had."""
    directory.mkdir(exist_ok=True)
    starts = range(10**6, 10**6 + 1000 * size, 1000)
    skips = [rollback.Skip(start, start + 300, start + 100, "nan") for start in starts]
    rollback.write(directory, skips)
    read = timed(lambda: rollback.read(directory))
    return {"resume": read} | _boundary(_model(_Many(1)), directory)


def _boundary(
    model: keras.Model, directory: Path, callbacks: list[Any] | None = None
) -> Samples:
    """Between two batches of a fit, with no save due."""
    samples: list[float] = []
    plain = FitAttempt.before_batch

    def watched(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            samples.append(time.perf_counter() - began)

    x = np.zeros((_BATCHES, 1), "float32")
    fit = {"batch_size": 1, "verbose": 0, "callbacks": callbacks, "save_freq": 10**9}
    FitAttempt.before_batch = watched
    try:
        resilient.fit(model, x, x, checkpoint_dir=directory, **fit)
    finally:
        FitAttempt.before_batch = plain
    return {"boundary": samples[1:], "first boundary": samples[:1]}


# Each with the sizes at which it is measured.
QUANTITIES = {
    "variables": (variables, (10, 100, 1000, 10_000)),
    "megabytes": (megabytes, (10, 100, 1000, 4000)),
    "checkpoints": (checkpoints, (1, 10, 100, 1000, 10_000)),
    "events": (events, (10, 1000, 100_000, 1_000_000)),
    "history": (history, (10, 1000, 100_000, 1_000_000)),
    "callbacks": (callbacks, (1, 10, 100)),
    "rollbacks": (rollbacks, (1, 10, 100, 1000)),
}


def measure(name: str, size: int, directory: str) -> dict[str, dict[str, float]]:
    """Medians and quartiles at one size, in seconds."""
    found = QUANTITIES[name][0](size, Path(directory))
    if name not in ("variables", "megabytes"):
        found[MEMORY] = [memory()]
    return {
        what: {
            "median": statistics.median(samples),
            "quartiles": np.quantile(samples, (0.25, 0.5, 0.75)).tolist(),
        }
        for what, samples in found.items()
    }
