"""One process's part in a run, from locking the directory to leaving it.

It is the same for Keras's ``fit`` and for a custom training loop: the processes find
each other, process 0 locks the directory, and events, heartbeat and signals are set up.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from resilient._version import __version__
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.convert.start import Starts, start
from resilient.data.inputs import DataInputs
from resilient.data.shard import ShardedData
from resilient.distributed.group import ALONE, Group
from resilient.distributed.rendezvous import join
from resilient.distributed.strategies.base import ParallelStrategy, parallel_strategy
from resilient.errors import NotSupportedError
from resilient.keras_internals import replicas
from resilient.policies.keep import Best
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving import choose, record
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.record import Loaded
from resilient.saving.writer import Committer
from resilient.serialization.position import Positions
from resilient.state import fingerprint
from resilient.state.rng import kept_random_state
from resilient.storage import layout, manifest
from resilient.storage.compiled import CompiledPrograms
from resilient.storage.manifest import LIBRARY
from resilient.telemetry import heartbeat
from resilient.telemetry.attempts import attempt_starts, last_attempt, read_attempts
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events
from resilient.training.options import RunOptions
from resilient.training.outcome import awaited, reported
from resilient.training.state import no_garbage_collection
from resilient.training.under_way import under_way
from resilient.witness.witness import Witness


class Session:
    """Everything that training needs in this process: workers, data, events and saves.

    Args:
        options: The arguments of the run.
        strategy: The tf.distribute strategy; None on other backends.
        parallel: How several processes train one model.
        group: These processes.
        committed: Called after each commit, on the writer's thread.

    Attributes:
        resume: Which checkpoint to resume from, until the run goes back to another.
        resumed: Progress of the checkpoint that training continues from, if any.
        backend: The adapter of Keras's backend.
        part: Which part of a checkpoint this process writes.
        events: Records everything that happens.
        watch: Takes heartbeats; knows whether this process was asked to stop.
        saving: Saves when the policy says so.
        recorder: Records digests of the state, where ``resilient prove`` asks for them.
        say: Prints a line for the user.
        witness: Leaves words of each step, and compares them after a resume.
        alike: Whether it resumed the last attempt, with nothing changed on purpose.
        training: Whether a batch has been trained in this process.
        last: The previous attempt, in process 0.
        attempts: Host, pid and start time of this process's predecessors.
    """

    def __init__(
        self,
        options: RunOptions,
        strategy: Any,
        parallel: ParallelStrategy,
        group: Group,
        committed: Callable[[], None],
    ) -> None:
        directory, index = options.store.directory, group.index
        self.options, self.strategy = options, strategy
        self.resume: choose.ResumeFrom = options.resume
        self.resumed: Progress | None = None
        self.parallel, self.group, self.backend = parallel, group, get_backend()
        self.part = Part(index, group.count, replicas.count_under(strategy))
        self.say, self.training, self.alike = Notifier(), False, False
        self.events = Events(directory, options.on_event, index)
        before = read_attempts(directory, index)
        self.attempts = [] if options.resume == "never" else attempt_starts(before)
        self.last = last_attempt(before) if index == 0 else None
        options.store.report, options.store.say = self.events.emit, self.say
        environment = fingerprint.environment(self.backend)
        self.events.emit(
            "started",
            previous=heartbeat.last_words(directory),
            environment={LIBRARY: __version__, **environment},
            processes=group.count,
        )
        self.watch = Watch(
            self.events.attempt,
            directory,
            options.preemption,
            leads=index == 0,
            request_save=self.request_save,
        )
        self.saving = Checkpointer(
            Committer(
                options.store,
                options.keep,
                self.events,
                environment,
                group,
                committed=committed,
            ),
            policy=options.save_policy,
            on_error=options.on_save_error,
            waiting=self.watch.saving,
        )
        self.witness = Witness(
            directory,
            self.part,
            self.backend.peek,
            group,
            self.events,
            data=options.data,
            on_inexact=options.on_inexact,
            say=self.say,
        )
        self.recorder = None
        if options.trial is not None:
            from resilient.training.trial import Recorder

            self.recorder = Recorder(options.trial, self)

    def drawn(self, batch: Any) -> Any:
        """The batch, which is about to be trained."""
        if self.recorder is not None:
            self.recorder.drawn(batch)
        return self.witness.drawn(batch)

    def request_save(self) -> None:
        """Save at the next boundary, whatever the policy says."""
        self.saving.request()

    def start_from(self, starts: Starts, models: Mapping[str, Any]) -> list[str]:
        """Set the initial weights that were asked for; lines say what was taken."""
        started = [*start(starts, models, self.group)]
        for _, event in started:
            self.events.emit("started from", **event)
        return [line for line, _ in started]

    @no_garbage_collection()
    def choose(self) -> Loaded | None:
        """The checkpoint that the run resumes from, the same in all processes.

        Raises:
            CheckpointNotFoundError: ``resume`` asks for a checkpoint that does not
                exist, or saved checkpoints are gone.
            CorruptCheckpointError: There are checkpoints, but none is intact.
        """
        store, elsewhere = self.options.store, "backend" in self.options.allow
        mine = record.PartReader(self.backend, self.part, elsewhere=elsewhere)
        asked, events = self.resume, self.events
        found = choose.choose_together(self.group, store, asked, mine, events)
        self.resumed = None if found is None else found[0].progress
        if found is not None and isinstance(asked, Best):
            self.resume = found[0].step
        return found

    def inputs(
        self, arguments: Mapping[str, Any], positions: Positions | None
    ) -> DataInputs:
        """The data of a fit or a loop.

        Args:
            arguments: Local variables of Keras's ``fit``; for a loop, their equivalent.
            positions: The positions of the data in the checkpoint.
        """
        return DataInputs(
            self.strategy,
            self.backend,
            options=self.options.data,
            arguments=arguments,
            positions=positions or Positions(),
            replaying=self._replaying,
            share=ShardedData(self.parallel, self.group),
        )

    def stop_if_asked(self) -> None:
        """Stop once everything is on disk; several processes stop at the next batch."""
        if self.group.count == 1:
            self.watch.stop_if_asked()

    @contextlib.contextmanager
    def replay(self, inputs: DataInputs, progress: Progress) -> Iterator[None]:
        """Inside, the data moves to its position, and an iterator is created.

        The uninterrupted run created it earlier, so that leaves no trace now.
        """
        began = time.monotonic()
        with kept_random_state(self.backend, leave=inputs.drawn_ahead):
            yield
        seconds = time.monotonic() - began
        self.events.emit("replayed", **progress._asdict(), seconds=seconds)

    def ended(self, progress: Progress) -> None:
        """Training has ended and is saved."""
        self.events.emit("ended", **progress._asdict())
        self.watch.stop_if_asked(saved=True)

    def _replaying(self) -> None:
        """A batch was drawn again on the way to a position."""
        self.watch.beat("replaying")
        self.stop_if_asked()


def load(options: RunOptions, step: int | None, replicas: int) -> Loaded:
    """A checkpoint to look at.

    Args:
        options: The arguments of the run.
        step: As for ``choose.to_inspect``, with the same errors.
        replicas: The number of replicas of the model.
    """
    elsewhere = "backend" in options.allow
    mine = record.PartReader(get_backend(), Part(0, 1, replicas), elsewhere=elsewhere)
    return choose.to_inspect(options.store, step, mine)


@contextlib.contextmanager
def open_session(
    options: RunOptions, strategy: Any, *, by_hand: bool = False
) -> Iterator[Session]:
    """Set up everything that training needs.

    Args:
        options: What the run was asked for.
        strategy: The tf.distribute strategy; None on other backends.
        by_hand: Whether the loop is the user's own, and not Keras's ``fit``.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        PeerLostError: The processes cannot find each other.
        NotSupportedError: They do not share the directory or the key, or training under
            the strategy cannot be resumed exactly.
    """
    parallel = parallel_strategy(strategy, by_hand=by_hand)
    store = options.store
    layout.make_directory(store.directory)
    anew = options.resume == "never"
    with contextlib.ExitStack() as opened:
        group = ALONE
        if parallel.count > 1:
            group = opened.enter_context(join(parallel, store.directory))
        if group.index == 0:  # it changes the directory for all
            opened.enter_context(store.opened(anew=anew))
        _require_same_key(group)
        committed = opened.enter_context(_compiled(options, group))
        session = Session(options, strategy, parallel, group, committed)
        # Left from the last to the first.
        with (
            under_way(session),
            session.watch.running(),  # takes signals and heartbeats until all is over
            reported(session),  # of what ended training or any of what follows
            awaited(session),  # uploads what was written
            group.explained(),  # an error here may be that of another process
            session.saving,  # writes the last snapshot
        ):
            yield session


@contextlib.contextmanager
def _compiled(options: RunOptions, group: Group) -> Iterator[Callable[[], None]]:
    """Inside, the backend loads what earlier starts compiled, unless it has peers.

    Yields:
        What to call after each commit.
    """
    alone = options.keep_compiled and group.count == 1
    keep = get_backend().keep_compiled() if alone else None
    if keep is None:
        yield lambda: None
        return
    programs = CompiledPrograms(options.store.directory)
    with programs.opened() as path, keep(path) if path else contextlib.nullcontext():
        yield programs.seal if path else lambda: None


def _require_same_key(group: Group) -> None:
    """Raise if a process has a different key: its checkpoints would be refused."""
    challenge = group.broadcast("key", secrets.token_hex(16))
    said = group.gather("key", manifest.proof_of_key(challenge))
    others = [index for index, each in enumerate(said) if each != said[0]]
    if others := group.broadcast("other keys", others):
        raise NotSupportedError(
            f"{manifest.KEY} is not the same in all processes.",
            received="different from process 0, or set in only one of the two: "
            f"process {', '.join(map(str, others))}",
            hint=f"Set {manifest.KEY} to the same key for all processes.",
        )
