"""One attempt of a scenario: what a process does between its start and its death.

``python -m <package>.attempt ORDER`` does it in a fresh interpreter; the server does it
in a forked one.
"""

import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from support.fatal import count_calls, die_in_save, slow_down
from support.shared_files import share_files_of_small_tensors
from support.waited import wait_for_each_save, wait_for_the_first_save

from . import capture, record
from .callbacks import Recorder
from .changes import change
from .loops import LOOPS
from .loops.performing import perform as perform_loop
from .points import Killer, Point
from .scenarios import SCENARIOS
from .scenarios.registry import Case

FILES = "files"


@dataclass(frozen=True)
class Order:
    """What to do, as JSON.

    Attributes:
        scenario: Name of the scenario.
        home: The run's directory: attempts of one run share it.
        out: Name of the record's file, in ``home``.
        mode: ``"keras"`` for ``model.fit``, ``"resilient"`` for ours.
        kill: A kill point, see ``points``; or None.
        seed: Of every global random number generator; None leaves them to chance.
        fit: Overrides of the scenario's arguments of ``fit``.
        compile: Overrides of attributes of the compiled model: steps_per_execution.
        options: Arguments of ours: save_freq (see ``policy``), keep, resume, on_nan
            (arguments of ``Rollback``).
        change: What the script has otherwise than before, see ``changes``.
        background: Whether training goes on while a checkpoint is written, as it does
            for users; otherwise it waits, so that a kill point says what is committed.
            The first checkpoint of an attempt is always waited for.
        slow_disk: Seconds that a flush to the disk takes longer than it does.
    """

    scenario: str
    home: str
    out: str
    mode: str
    kill: str | None
    seed: int | None
    fit: dict[str, Any]
    compile: dict[str, Any]
    options: dict[str, Any]
    change: str = ""
    background: bool = False
    slow_disk: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Order":
        return cls(**json.loads(text))


def perform(order: Order, begun: Callable[[], None] = lambda: None) -> None:
    """Train as ordered, then write the record; ``begun`` is called before ``fit``."""
    os.makedirs(Path(order.home, FILES), exist_ok=True)
    os.chdir(Path(order.home, FILES))
    use_one_thread()
    seed_all(order.seed)
    if order.scenario in LOOPS:
        perform_loop(order, options_of(order), begun)
        return
    case = SCENARIOS[order.scenario].build()
    if order.change:
        change(case, order.change)
    for name, value in order.compile.items():
        setattr(case.model, name, value)
    case.kwargs.update(order.fit)
    if case.recorded:
        case.callbacks.append(Recorder())
    point = Point.parse(order.kill) if order.kill else None
    first = Killer(point if point and point.first else None)
    last = Killer(None if point and point.first else point)
    case.kwargs["callbacks"] = [first, *case.callbacks, last]
    kill_at = int(order.kill.split("@")[1]) if point and point.event == "call" else None
    if point and point.event == "save":
        number, _, seconds = order.kill.partition("@")[2].partition("+")
        die_in_save(int(number), float(seconds))
    calls = count_calls(kill_at)
    if order.slow_disk:
        slow_down(order.slow_disk)
    begun()
    history = fit(order, case)
    about = {"trained": last.where.trained, "calls": list(calls)}
    found = capture.take(case, history, Path.cwd())
    Path(order.home, order.out + ".json").write_text(json.dumps(about))
    record.save(found, Path(order.home, order.out))


def fit(order: Order, case: Case) -> keras.callbacks.History:
    if order.mode == "keras":
        return case.model.fit(*case.args, **case.kwargs)
    import resilient

    options = options_of(order)
    directory = Path(order.home, "checkpoints")
    return resilient.fit(
        case.model, *case.args, checkpoint_dir=directory, **options, **case.kwargs
    )


def options_of(order: Order) -> dict[str, Any]:
    """Our arguments; and nothing may be inexact from now on."""
    import resilient

    if order.background:  # with what else users have, some of the time
        share_files_of_small_tensors()
        wait_for_the_first_save()
    else:
        wait_for_each_save()
    warnings.simplefilter("error", resilient.NotExactWarning)
    if order.options.get("allow"):  # which is said
        warnings.filterwarnings(
            "ignore", ".*`allow` accepts", resilient.NotExactWarning
        )
    options = dict(order.options)
    if "save_freq" in options:
        options["save_freq"] = policy(options["save_freq"])
    if "on_nan" in options:
        options["on_nan"] = resilient.Rollback(*options["on_nan"])
    return options


def policy(value: Any) -> Any:
    """A save policy from JSON: "epoch", a number, or a list of ``every`` arguments."""
    if not isinstance(value, list):
        return value
    import resilient

    first, *others = (resilient.every(**arguments) for arguments in value)
    for other in others:
        first = first | other
    return first


def use_one_thread() -> None:
    """One thread and deterministic kernels: or no two runs would be equal."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)


def seed_all(seed: int | None) -> None:
    if seed is None:  # not even what the server forked us with
        random.seed()
        np.random.seed()
        if keras.backend.backend() == "torch":
            import torch

            torch.seed()
        return
    keras.utils.set_random_seed(seed)
    random.seed(seed + 1)  # another seed than numpy's: they must not be mixed up


if __name__ == "__main__":
    perform(Order.from_json(sys.argv[1]))
