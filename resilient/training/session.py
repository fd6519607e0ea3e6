"""One process's part in a run, from taking the directory until it leaves it.

Whoever trains, Keras's ``fit`` or a loop by hand: the processes find each other,
process 0 takes the directory, and events, signs of life and signals are seen to.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.distributed.group import Group
from resilient.distributed.rendezvous import join
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving import choose, record
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.choose import Resume
from resilient.saving.record import Loaded
from resilient.saving.run_json import RunJson
from resilient.state import fingerprint
from resilient.storage.checkpoint import Reader
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store
from resilient.telemetry import heartbeat
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events, attempts_so_far
from resilient.training.options import RunOptions
from resilient.training.outcome import reported


class Session:
    """Who takes part, who is told, and who saves.

    Args:
        options: What the run was asked for.
        parallel: How the processes train one model.
        group: These processes.
        replicas: How many there are of the model, in all of them.

    Attributes:
        part: Which part of a checkpoint this process makes.
        events: Told of what happens.
        watch: Told that training goes on; knows whether it was asked to stop.
        say: Tells the user.
        attempts: Host, pid and start of the processes that did this one's part before.
        saving: The newest checkpointer, if there is one.
    """

    def __init__(
        self,
        options: RunOptions,
        parallel: ParallelStrategy,
        group: Group,
        *,
        replicas: int,
    ) -> None:
        directory, index = options.store.directory, group.index
        self.options, self.parallel, self.group = options, parallel, group
        self.part = Part(index, group.count, replicas)
        self.say = Notifier()
        self.events = Events(directory, options.on_event, index)
        anew = options.resume == "never"
        self.attempts = [] if anew else attempts_so_far(directory, index)
        self.events.emit("started", previous=heartbeat.last_words(directory))
        self.saving: Checkpointer | None = None
        self.watch = Watch(
            self.events.attempt,
            directory,
            options.preemption,
            leads=index == 0,
            saver=lambda: self.saving,
        )

    def checkpointer(self, *, within_epoch: bool) -> Checkpointer:
        """What saves from now on; a context.

        Args:
            within_epoch: Whether it may speak beside Keras's progress bar.
        """
        self.saving = Checkpointer(
            self.options.store,
            policy=self.options.save_policy,
            keep=self.options.keep,
            events=self.events,
            environment=fingerprint.environment(get_backend()),
            on_error=self.options.on_save_error,
            say=lambda line: self.say(line, within_epoch=within_epoch),
            waiting=self.watch.saving,
            group=self.group,
        )
        return self.saving

    def go_back_to(self, step: int | None) -> Loaded:
        """A checkpoint to go on from in place of the last; of a step, or the newest."""
        resume: Resume = "must" if step is None else step
        self.options = replace(self.options, resume=resume)
        found = self.choose()
        assert found is not None
        return found

    def stop_if_asked(self) -> None:
        """Stop where all is on the disk; several processes, at the next batch."""
        if self.group.count == 1:
            self.watch.stop_if_asked()

    def replayed(self, progress: Progress, seconds: float) -> None:
        """The data is where it was, which took so long."""
        self.events.emit("replayed", **progress.to_json(), seconds=seconds)

    def ended(self, progress: Progress) -> None:
        """Training came to its end, and is saved."""
        self.events.emit("ended", **progress.to_json())
        self.watch.stop_if_asked(saved=True)

    def choose(self) -> Loaded | None:
        """The checkpoint that the run resumes from, in all processes the same.

        Raises:
            CheckpointNotFoundError: ``resume`` asks for one that is not there.
            CorruptCheckpointError: There are some, and none is intact.
        """
        return choose.choose_together(
            self.group,
            self.options.store,
            self.options.resume,
            reader(self.part),
            self.events,
        )


def reader(part: Part) -> Reader[record.SavedState[RunJson]]:
    """Reads what a process needs, with the backend that Keras runs on."""
    return record.reader(get_backend(), part)


def load(store: Store, step: int | None, replicas: int) -> Loaded:
    """A checkpoint to look at, of a step or the newest one, outside of any run.

    Raises:
        CheckpointNotFoundError: There is none, or none of that step.
        CorruptCheckpointError: It is damaged.
    """
    mine = reader(Part(0, 1, replicas))
    if not store.directory.is_dir():
        raise choose.not_found(store.directory)
    if step is not None:
        return store.load(step, mine)
    return choose.newest(store, mine)


@contextlib.contextmanager
def open_session(
    options: RunOptions, parallel: ParallelStrategy, *, replicas: int
) -> Iterator[Session]:
    """Set up what there is around a training.

    Args:
        options: What the run was asked for; its directory exists.
        parallel: How the processes train one model.
        replicas: How many there are of the model.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        PeerLostError: The processes do not find each other.
        NotSupportedError: They do not share the directory.
    """
    store = options.store
    with join(parallel, store.directory) as group, _alone(group, store):
        session = Session(options, parallel, group, replicas=replicas)
        telling = reported(
            session.events, session.watch, store, options.resume, session.say
        )
        with session.watch, telling, group.explained():
            yield session


@contextlib.contextmanager
def _alone(group: Group, store: Store) -> Iterator[None]:
    """The right to change the directory, which process 0 has for all."""
    if group.index:
        yield
        return
    with DirectoryLock(store.directory):
        store.remove_stale_staging()
        yield
