"""What there is around Keras's ``fit`` while it runs: set up before, put away after it.

The other processes, the right to change the checkpoint directory, the events, and the
watch for whoever asks to stop.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilient.distributed.group import Group
from resilient.distributed.rendezvous import join
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.preemption.options import Preemption
from resilient.preemption.watch import Watch
from resilient.saving.choose import Resume
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store
from resilient.telemetry import heartbeat
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events, attempts_so_far
from resilient.training.options import OnEvent
from resilient.training.outcome import told


@dataclass(frozen=True)
class Session:
    """Who takes part in one fit.

    Attributes:
        parallel: How the processes train one model.
        group: These processes.
        events: Told of what happens.
        watch: Told that training goes on; knows whether it was asked to stop.
        say: Tells the user.
        attempts: Host, pid and start of the processes that did this one's part before.
    """

    parallel: ParallelStrategy
    group: Group
    events: Events
    watch: Watch
    say: Notifier
    attempts: Sequence[Mapping[str, Any]]


@contextlib.contextmanager
def open_session(
    store: Store,
    parallel: ParallelStrategy,
    *,
    resume: Resume,
    on_event: OnEvent | None,
    preemption: Preemption | None,
) -> Iterator[Session]:
    """Set up what there is around a fit.

    Args:
        store: The checkpoints, in a directory that exists.
        parallel: How the processes train one model.
        resume: As in ``fit``.
        on_event: The same.
        preemption: The same.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        PeerLostError: The processes do not find each other.
        NotSupportedError: They do not share the directory.
    """
    directory = store.directory
    with join(parallel, directory) as group, _alone(group, store):
        number = group.index
        events, say = Events(directory, on_event, number), Notifier()
        attempts = [] if resume == "never" else attempts_so_far(directory, number)
        events.emit("started", previous=heartbeat.last_words(directory))
        watch = Watch(events.attempt, directory, preemption, leads=number == 0)
        telling = told(events, watch, store, resume, say)
        with watch, telling, group.explained():
            yield Session(parallel, group, events, watch, say, attempts)


@contextlib.contextmanager
def _alone(group: Group, store: Store) -> Iterator[None]:
    """The right to change the directory, which process 0 has for all."""
    if group.index:
        yield
        return
    with DirectoryLock(store.directory):
        store.remove_stale_staging()
        yield
