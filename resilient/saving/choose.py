"""Chooses the checkpoint to resume from, and moves away those it passes over."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from resilient.distributed.group import Group
from resilient.errors import CheckpointNotFoundError, printable
from resilient.policies.keep import Best
from resilient.storage import refusals
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.layout import EVENTS
from resilient.storage.store import Store
from resilient.telemetry.events import Events, read_events

logger = logging.getLogger(__name__)

Resume = Literal["auto", "best", "never", "must"] | int
# The same, with the metric for "best" resolved.
ResumeFrom = Literal["auto", "never", "must"] | int | Best
T = TypeVar("T")


def find(
    store: Store,
    resume: ResumeFrom,
    read: Callable[[Checkpoint], T],
    events: Events,
) -> tuple[Checkpoint, T] | None:
    """The checkpoint that ``resume`` asks for, with what ``read`` returned.

    Returns:
        None if the run starts: once it has saved, only ``resume="never"`` starts over.

    Raises:
        CheckpointNotFoundError: It does not exist, or all checkpoints are gone.
        CorruptCheckpointError: There are checkpoints, but no usable one is intact.
    """
    if resume == "never":
        return None
    if isinstance(resume, Best):
        resume = _best_step(store, resume)
    if isinstance(resume, int):
        return store.load(resume, read)

    def fell_back(name: str, reason: str) -> None:
        log_fall_back(name, reason)
        events.emit("fell back", checkpoint=name, reason=reason)

    found = store.load_newest(read, fell_back)
    if found is not None:
        return found
    if resume == "must":
        raise not_found(store)
    if evidence := _evidence_of_saves(store):
        raise CheckpointNotFoundError(
            "This run has saved checkpoints, but all of them are gone.",
            received=f"{store}, {evidence}",
            hint="Restore them under their own names (is a disk not mounted?), or "
            'start over with resume="never" or in another directory.',
        )
    return None


def _best_step(store: Store, best: Best) -> int:
    """The step of the best checkpoint.

    Raises:
        CheckpointNotFoundError: None has a value to compare.
    """
    there = [each for each in store.checkpoints() if each.is_trusted()]
    for step in replace(best, n=1).select(there):
        return step
    metrics = sorted({name for each in there for name in each.metrics})
    raise CheckpointNotFoundError(
        f"No checkpoint has a value for {best.monitor}, so none is the best.",
        received=f"{store}, with "
        + (printable(f"only {', '.join(metrics)}") if metrics else "no metrics at all"),
        hint="Monitor a metric under its name in History; only checkpoints at the "
        'end of an epoch have metrics. Or use resume="auto" to resume from the '
        "newest checkpoint.",
    )


def _evidence_of_saves(store: Store) -> str:
    """Evidence of a checkpoint since the run last started over; empty if none."""
    evidence = ""
    try:
        for event in read_events(store.directory, all_of_them=True):
            if event["event"] in ("saved", "restored"):
                evidence = f"{EVENTS} records them"
            elif event["event"] == "started over":
                evidence = ""
            elif event["event"] == "unknown":
                evidence = evidence or f"probably: {EVENTS} has unreadable lines"
    except OSError as error:
        return f"probably: {EVENTS} cannot be read ({error.strerror})"
    return evidence


def choose_together(
    group: Group,
    store: Store,
    resume: ResumeFrom,
    read: Callable[[Checkpoint], T],
    events: Events,
) -> tuple[Checkpoint, T] | None:
    """The same in several processes: process 0 verifies every part, and chooses."""
    if group.index:
        step = group.broadcast("resume from")
        return None if step is None else intact(store, step, read)
    found = find(store, resume, read, events)
    group.broadcast("resume from", None if found is None else found[0].step)
    return found


def to_inspect(
    store: Store, step: int | None, read: Callable[[Checkpoint], T]
) -> tuple[Checkpoint, T]:
    """A checkpoint to inspect, outside any run: of a step, or the newest intact one.

    Raises:
        CheckpointNotFoundError: There is none, or none of that step.
        CorruptCheckpointError: It is damaged, or none is intact.
    """
    there = store.directory.is_dir()
    if there and step is not None:
        return store.load(step, read)
    found = store.load_newest(read, log_fall_back) if there else None
    if found is None:
        raise not_found(store)
    return found


def of_step(store: Store, step: int | None) -> Checkpoint:
    """The checkpoint of a step, or the newest one; only its manifest was read.

    Raises:
        CheckpointNotFoundError: There is none.
        CorruptCheckpointError: The manifest is damaged.
    """
    steps = store.steps()
    if not steps:
        raise not_found(store)
    return store.read(steps[-1] if step is None else step)


def intact(
    store: Store, step: int | None, read: Callable[[Checkpoint], T]
) -> tuple[Checkpoint, T]:
    """The checkpoint of a step, or the newest one, verified; nothing is changed.

    Raises:
        CheckpointNotFoundError: There is none.
        CorruptCheckpointError: It is damaged.
    """
    checkpoint = of_step(store, step)
    try:
        return checkpoint, checkpoint.load(read)
    except DamageError as error:
        raise refusals.damaged(checkpoint.path, str(error)) from None


def discard(store: Store, resume: ResumeFrom, events: Events) -> None:
    """Move away the checkpoints that ``resume`` says not to use."""
    if resume == "never":
        discarded = store.discard_all()
        if discarded or _evidence_of_saves(store):
            events.emit("started over", discarded=discarded)
    elif isinstance(resume, int):
        discarded = store.discard_after(resume)
        if discarded:
            events.emit("rolled back", step=resume, discarded=discarded)


def log_fall_back(name: str, reason: str) -> None:
    """Report that a checkpoint cannot be used."""
    logger.warning("%s is damaged, so it is skipped: %s", name, reason)


def not_found(directory: object) -> CheckpointNotFoundError:
    """The error if there is none."""
    return CheckpointNotFoundError(
        "There is no checkpoint to resume from.",
        received=str(directory),
        hint='Check checkpoint_dir, or use resume="auto", which starts from scratch '
        "if there is none.",
    )
