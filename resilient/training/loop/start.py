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
from resilient.objects.adapters import Objects
from resilient.saving.record import of_kind
from resilient.saving.run_json import LoopRun
from resilient.state import replicas
from resilient.storage.checkpoint import Checkpoint
from resilient.training import script_end
from resilient.training.loop.attempt import LoopAttempt
from resilient.training.loop.position import LoopPlan, LoopPosition
from resilient.training.loop.run_state import LoopState
from resilient.training.opening import open_session
from resilient.training.session import Session, load


@contextlib.contextmanager
def open_run(plan: LoopPlan) -> Iterator[LoopAttempt]:
    """Lock the directory, find the checkpoint, and follow the loop.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        CheckpointNotFoundError: ``resume`` asks for a checkpoint that does not exist,
            or saved checkpoints are gone.
        CorruptCheckpointError: There are checkpoints, but none is intact.
    """
    options, standing = plan.options, plan.standing
    if standing.entered:  # do not start over what this process trained
        options = copy(options)
        options.resume = "auto"
    strategy = strategy_of(plan.objects)
    with open_session(options, strategy, by_hand=True) as session:
        # No progress bar, as with verbose=2 in Keras.
        session.say.set_verbose(2 if plan.verbose else 0)
        if not standing.entered or standing.inside:
            _look(plan, session)
        attempt = LoopAttempt(plan, session)
        script_end.watch(session, plan.objects.leaves)
        try:
            yield attempt
        except Exception:
            session.watch.disarm()
            raise


def _look(plan: LoopPlan, session: Session) -> None:
    """Find the checkpoint to resume from, at the start or after a loop left midway."""
    standing, found = plan.standing, session.choose()
    standing.found = None if found is None else of_kind(found, LoopRun)
    if standing.found is not None:
        standing.progress, standing.done = standing.found[0].progress, -1
        standing.resume(standing.found, session.options.allow)
    elif standing.inside:
        raise ResilientError(
            "An earlier loop of this Run stopped midway, before the first checkpoint, "
            "so its objects have changed.",
            received=f"after {standing.progress}",
            hint="Create the objects and the Run again.",
        )
    else:
        _start_from_others(plan, session)
    standing.entered, standing.inside = True, False


def _start_from_others(plan: LoopPlan, session: Session) -> None:
    """Set the initial weights of a new run."""
    models = plan.objects.models()
    wanted = [(asked, models[name], name) for name, asked in plan.starts.items()]
    for name, started in zip(plan.starts, start(wanted, session.group), strict=True):
        session.events.emit("started from", model=name, **started.to_json())
        session.say(f"{name}: {started}")


def look_at(plan: LoopPlan, step: int | None) -> Checkpoint:
    """Restore all objects to a checkpoint, outside any loop."""
    count = replicas.count_under(strategy_of(plan.objects))
    found = of_kind(load(plan.options, step, count), LoopRun)
    plan = replace(plan, standing=LoopPosition())
    plan.standing.resume(found, plan.options.allow)
    state = LoopState(plan, get_backend(), Part(0, 1, count), ALONE)
    state.require_fits(*found)
    state.restore_objects(found[1])
    return found[0]


def strategy_of(objects: Objects) -> Any:
    """The loop's tf.distribute strategy; None on other backends."""
    if keras_internals.BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    return objects.strategy() or tf.distribute.get_strategy()
