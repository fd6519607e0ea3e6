"""How a loop begins in this process, and ends: the part that needs Keras."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.data import DataOptions
from resilient.distributed.group import ALONE, Group
from resilient.distributed.strategies import parallel_strategy, supported
from resilient.errors import ResilientError
from resilient.objects.adapters import Objects
from resilient.policies import KeepPolicy, SavePolicy
from resilient.preemption.options import Preemption
from resilient.saving import choose, record
from resilient.saving.checkpointer import Checkpointer, OnSaveError
from resilient.saving.choose import Resume
from resilient.saving.run_json import RunJson
from resilient.state import fingerprint, replicas
from resilient.storage.checkpoint import Reader
from resilient.storage.store import Store
from resilient.training.loop.attempt import LoopAttempt
from resilient.training.loop.history import LogHistory
from resilient.training.loop.position import LoopPosition
from resilient.training.loop.run_state import LoopState
from resilient.training.options import OnEvent
from resilient.training.session import Session, open_session


@dataclass(frozen=True)
class LoopPlan:
    """What a run was asked for; the names are those of ``Run``'s arguments."""

    store: Store
    objects: Objects
    history: LogHistory
    standing: LoopPosition
    save_policy: SavePolicy
    keep: KeepPolicy
    resume: Resume
    data_options: DataOptions
    on_event: OnEvent | None
    on_save_error: OnSaveError
    preemption: Preemption | None
    verbose: int


@contextlib.contextmanager
def open_run(plan: LoopPlan) -> Iterator[LoopAttempt]:
    """Take the directory, find the checkpoint, and follow the loop.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        CheckpointNotFoundError: ``resume`` asks for one that is not there.
        CorruptCheckpointError: There are some, and none is intact.
    """
    strategy = strategy_of(plan.objects)
    supported.require_supported(strategy)
    # Of what this process itself has trained there is nothing to start over.
    resume = "auto" if plan.standing.entered else plan.resume
    parallel = parallel_strategy(strategy, by_hand=True)
    with open_session(
        plan.store,
        parallel,
        resume=resume,
        on_event=plan.on_event,
        preemption=plan.preemption,
    ) as session:
        session.say.set_verbose(plan.verbose)
        if not plan.standing.entered or plan.standing.inside:
            _look(plan, resume, session)
        with _saving(plan, session) as saving:
            session.watch.on_save = saving.request
            attempt = LoopAttempt(
                plan.standing,
                contents=contents_of(plan, session.group),
                history=plan.history,
                saving=saving,
                store=plan.store,
                reader=reader_of(plan, session.group),
                strategy=strategy,
                data_options=plan.data_options,
                resume=resume,
                verbose=bool(plan.verbose),
                session=session,
            )
            try:
                yield attempt
            except Exception:
                session.watch.disarm()
                raise


def _look(plan: LoopPlan, resume: Resume, session: Session) -> None:
    """Find the checkpoint to go on from: at first, and where a loop was left."""
    standing = plan.standing
    standing.found = choose.choose_together(
        session.group,
        plan.store,
        resume,
        reader_of(plan, session.group),
        session.events,
    )
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


def _saving(plan: LoopPlan, session: Session) -> Checkpointer:
    return Checkpointer(
        plan.store,
        policy=plan.save_policy,
        keep=plan.keep,
        events=session.events,
        environment=fingerprint.environment(get_backend()),
        on_error=plan.on_save_error,
        say=session.say,
        waiting=session.watch.saving,
        group=session.group,
    )


def contents_of(plan: LoopPlan, group: Group = ALONE) -> LoopState:
    """What a checkpoint is made of."""
    return LoopState(
        plan.objects,
        plan.history,
        plan.standing,
        backend=get_backend(),
        part=_part(plan, group),
        group=group,
    )


def reader_of(
    plan: LoopPlan, group: Group = ALONE
) -> Reader[record.SavedState[RunJson]]:
    """Reads what this process needs of a checkpoint."""
    return record.reader(get_backend(), _part(plan, group))


def strategy_of(objects: Objects) -> Any:
    """That of tf.distribute which the loop trains under; None on other backends."""
    if keras_internals.BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    return objects.strategy() or tf.distribute.get_strategy()


def _part(plan: LoopPlan, group: Group) -> Part:
    count = replicas.count_under(strategy_of(plan.objects))
    return Part(group.index, group.count, count)
