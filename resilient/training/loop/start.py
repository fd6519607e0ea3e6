"""How a loop begins in this process, and ends: the part that needs Keras."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.distributed.group import ALONE, Group
from resilient.distributed.strategies import parallel_strategy, supported
from resilient.errors import ResilientError
from resilient.objects.adapters import Objects
from resilient.state import replicas
from resilient.storage.checkpoint import Checkpoint
from resilient.training.loop.attempt import LoopAttempt
from resilient.training.loop.history import LogHistory
from resilient.training.loop.position import LoopPosition
from resilient.training.loop.run_state import LoopState
from resilient.training.options import RunOptions
from resilient.training.session import Session, load, open_session


@dataclass(frozen=True)
class LoopPlan:
    """A run of a loop.

    Attributes:
        options: What was asked for.
        objects: What the loop was given by name.
        history: What is logged.
        standing: Where the run is.
        verbose: Whether the user is told.
    """

    options: RunOptions
    objects: Objects
    history: LogHistory
    standing: LoopPosition
    verbose: int


@contextlib.contextmanager
def open_run(plan: LoopPlan) -> Iterator[LoopAttempt]:
    """Take the directory, find the checkpoint, and follow the loop.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        CheckpointNotFoundError: ``resume`` asks for one that is not there.
        CorruptCheckpointError: There are some, and none is intact.
    """
    strategy, options = strategy_of(plan.objects), plan.options
    supported.require_supported(strategy)
    if plan.standing.entered:  # of what this process trained nothing is started over
        options = replace(options, resume="auto")
    parallel = parallel_strategy(strategy, by_hand=True)
    count = replicas.count_under(strategy)
    with open_session(options, parallel, replicas=count) as session:
        session.say.set_verbose(plan.verbose)
        if not plan.standing.entered or plan.standing.inside:
            _look(plan.standing, session)
        with session.checkpointer(within_epoch=False):
            attempt = LoopAttempt(
                session,
                _state(plan, session.part, session.group),
                plan.standing,
                plan.history,
                strategy=strategy,
                verbose=bool(plan.verbose),
            )
            try:
                yield attempt
            except Exception:
                session.watch.disarm()
                raise


def _look(standing: LoopPosition, session: Session) -> None:
    """Find the checkpoint to go on from: at first, and where a loop was left."""
    standing.found = session.choose()
    if standing.found is not None:
        standing.progress, standing.done = standing.found[0].progress, -1
    elif standing.inside:
        raise ResilientError(
            "A loop of this Run was left in the middle, before the first "
            "checkpoint: its objects are not what they were at the start.",
            received=f"after {standing.progress}",
            hint="Make them and the Run anew.",
        )
    standing.entered, standing.inside = True, False


def look_at(plan: LoopPlan, step: int | None) -> Checkpoint:
    """Set all objects to a checkpoint, outside of any loop."""
    count = replicas.count_under(strategy_of(plan.objects))
    found = load(plan.options.store, step, count)
    state = _state(plan, Part(0, 1, count), ALONE)
    state.put_back_objects(state.require_fits(*found))
    return found[0]


def _state(plan: LoopPlan, part: Part, group: Group) -> LoopState:
    return LoopState(
        plan.objects,
        plan.history,
        plan.standing,
        backend=get_backend(),
        part=part,
        group=group,
    )


def strategy_of(objects: Objects) -> Any:
    """That of tf.distribute which the loop trains under; None on other backends."""
    if keras_internals.BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    return objects.strategy() or tf.distribute.get_strategy()
