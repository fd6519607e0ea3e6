"""One attempt of a program: what a process does between its start and its death."""

import json
import os
import random
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras

import resilient

from . import fits, loops, record, sources
from .killing import Kill, Killer
from .table import ROWS, Row


def perform(order: Mapping[str, Any]) -> None:
    """Train, then write down what is left.

    Args:
        order: ``row``, its id; ``home``, the directory of a run; ``out``, the name of
            the record; ``plain``, whether ``resilient`` is left out; ``kill``, or None;
            ``seed``.
    """
    (row,) = (row for row in ROWS if row.id == order["row"])
    mine = f"-{os.environ['RANK']}" if row.workers > 1 else ""
    files = Path(order["home"], f"files{mine}")
    files.mkdir(parents=True, exist_ok=True)
    os.chdir(files)
    settle(order["seed"], row)
    warnings.simplefilter("error", resilient.NotExactWarning)
    kill = Kill.parse(order["kill"]) if order["kill"] else None
    train = loop if row.is_loop else fit
    left, trained = train(row, Path(order["home"], "run"), kill, plain=order["plain"])
    found = {"left": record.take(**left), "trained": trained}
    Path(order["home"], order["out"] + mine).write_text(json.dumps(found))
    if row.workers > 1 and keras.backend.backend() == "jax":
        import jax

        jax.distributed.shutdown()  # waits for the others, or they would be aborted


def settle(seed: int, row: Row) -> None:
    """Seed everything; what computes on one thread and repeats is compared."""
    if row.workers > 1:
        resilient.deterministic()
    elif keras.backend.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(True)
    keras.utils.set_random_seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    random.seed(seed + 1)  # another seed than NumPy's: they must not be mixed up


Left = tuple[dict[str, Any], list[Any]]


def loop(row: Row, directory: Path, kill: Kill | None, plain: bool) -> Left:
    def make(**objects: Any) -> Any:
        if plain:
            return loops.Plain(**objects)
        return resilient.Run(directory, verbose=0, **row.options, **objects)

    killer = Killer(kill, directory)
    compared = getattr(loops, row.name)(make, killer)
    run = compared.pop("run")
    history = {name: list(values) for name, values in run.history.items()}
    others = {"history": history, "step": run.step, "state": run.state}
    return compared | others, killer.trained


def fit(row: Row, directory: Path, kill: Kill | None, plain: bool) -> Left:
    """Train each fit of the program, as the row wants it saved."""
    program = getattr(fits, row.name, None) or getattr(sources, row.name)
    left, trained = {}, []
    saved = row.through == "enabled" and not plain
    with resilient.enabled(directory, **row.options) if saved else nullcontext():
        for number, case in enumerate(program()):
            where = f"worker {os.environ['RANK']}" if row.workers > 1 else ""
            killer = Killer(kill, directory, "second" if number else where)
            case.kwargs["callbacks"] = [*case.callbacks, KillerCallback(killer)]
            through = "plain" if plain else row.through
            history = fit_through(through, case, directory / str(number), row.options)
            trained += killer.trained
            left[f"fit {number}"] = {
                "model": case.model,
                "metrics": list(case.model.metrics_variables),
                "history": [history.history, history.epoch, history.params],
                "stopped": case.model.stop_training,
                "callbacks": case.callbacks,
                "others": case.others,
            }
    return left, trained


def fit_through(
    through: str, case: fits.Case, directory: Path, options: dict[str, Any]
) -> Any:
    if through == "fit":
        others = {"stateful": case.stateful} if case.stateful else {}
        return resilient.fit(
            case.model,
            *case.args,
            checkpoint_dir=directory,
            **options,
            **others,
            **case.kwargs,
        )
    if through == "callback":
        saver = resilient.BackupAndRestore(directory, **options)
        case.kwargs["callbacks"].insert(0, saver)
    return case.model.fit(*case.args, **case.kwargs)


class KillerCallback(keras.callbacks.Callback):
    """Tells a ``Killer`` where a fit is; keeps nothing that could be restored."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer, self._epoch = killer, 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._killer.reached("epoch begins", epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._killer.trained.append([self._epoch, batch])
        self._killer.reached("batch", self._epoch, batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._killer.reached("validation", self._epoch, batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._killer.reached("epoch ends", epoch)

    def on_train_end(self, logs: Any = None) -> None:
        self._killer.reached("train ends", 0)
