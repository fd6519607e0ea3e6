"""Starts and ends a loop in this process: the part that needs Keras."""

import contextlib
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.convert.start import start
from resilient.distributed.group import ALONE
from resilient.errors import ResilientError
from resilient.keras_internals import replicas
from resilient.objects.adapters import Objects
from resilient.storage.checkpoint import Checkpoint
from resilient.training.loop.attempt import LoopAttempt
from resilient.training.loop.position import LoopPlan, LoopPosition
from resilient.training.loop.state import LoopState
from resilient.training.session import Session, load, open_session


@contextlib.contextmanager
def open_run(plan: LoopPlan) -> Iterator[LoopAttempt]:
    """Lock the directory, find the checkpoint, and follow the loop.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        CheckpointNotFoundError: ``resume`` asks for a checkpoint that does not exist,
            or saved checkpoints are gone.
        CorruptCheckpointError: There are checkpoints, but none is intact.
    """
    options, position = plan.options, plan.position
    if position.entered:  # do not start over what this process trained
        options = copy(options)
        options.resume = "auto"
    strategy = strategy_of(plan.objects)
    with open_session(options, strategy, by_hand=True) as session:
        # No progress bar, as with verbose=2 in Keras.
        session.say.set_verbose(2 if plan.verbose else 0)
        if not position.entered or position.inside:
            _find_checkpoint(plan, session)
        attempt = LoopAttempt(plan, session)
        if session.recorder is not None:
            session.recorder.at_exit(plan.objects.leaves)
        try:
            yield attempt
        except Exception:
            session.watch.disarm()
            raise


def _find_checkpoint(plan: LoopPlan, session: Session) -> None:
    """Find what to resume from, at the start or after a loop that stopped midway."""
    position, found = plan.position, session.choose()
    if found is not None:
        resume = position.resume_from(found, session.options.allow)
        position.progress, position.done = resume.checkpoint.progress, -1
    elif position.inside:
        raise ResilientError(
            "An earlier loop of this Run stopped midway, before the first checkpoint, "
            "so its objects have changed.",
            received=f"after {position.progress}",
            hint="Create the objects and the Run again.",
        )
    else:
        _start_from_others(plan, session)
    position.entered, position.inside = True, False


def _start_from_others(plan: LoopPlan, session: Session) -> None:
    """Set the initial weights of a new run."""
    models = plan.objects.models()
    wanted = [(asked, models[name], name) for name, asked in plan.starts.items()]
    for name, started in zip(plan.starts, start(wanted, session.group), strict=True):
        session.events.emit("started from", model=name, **started.to_json())
        session.say(f"{name}: {started}")


def inspect(plan: LoopPlan, step: int | None) -> Checkpoint:
    """Restore all objects to a checkpoint, outside any loop."""
    backend, count = get_backend(), replicas.count_under(strategy_of(plan.objects))
    plan = replace(plan, position=LoopPosition())
    found = load(plan.options, step, count)
    resume = plan.position.resume_from(found, plan.options.allow)
    state = LoopState(plan, backend, Part(0, 1, count), ALONE)
    objects = state.objects(resume)
    resume.check(objects)
    resume.restore(objects)
    return resume.checkpoint


def strategy_of(objects: Objects) -> Any:
    """The loop's tf.distribute strategy; None on other backends."""
    if keras_internals.BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    return objects.strategy() or tf.distribute.get_strategy()
