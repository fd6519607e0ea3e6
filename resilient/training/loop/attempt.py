"""One process's attempt at a loop: where it is, and what happens between two batches.

While the user's loop runs, this restores the checkpoint when it begins, counts its
steps, and takes snapshots when they are due. A checkpoint from within an epoch is
restored twice: when the loop begins, since user code at the start of an epoch may read
the state, and before the batch, since that code may change it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.distributed.checks import require_same_variables
from resilient.distributed.group import ALONE
from resilient.errors import ResilientError
from resilient.keras_internals import replicas
from resilient.objects.adapters import Objects
from resilient.progress import Progress
from resilient.storage.checkpoint import Checkpoint
from resilient.training.boundaries import Boundaries, nothing_left
from resilient.training.loop.api import wrong_place_error
from resilient.training.loop.batches import Batches, BatchOptions
from resilient.training.loop.state import LoopPlan, LoopState
from resilient.training.session import Session, load, open_session


class LoopAttempt:
    """Follows a loop.

    Args:
        plan: The run.
        session: The processes, the events and the saves.
    """

    def __init__(self, plan: LoopPlan, session: Session) -> None:
        self._session, self._plan = session, plan
        self._state = LoopState(plan, session.backend, session.part, session.group)
        self._begun = self.in_loop = self._in_batch = self._iterated = False
        self._saved: Progress | None = None  # of the checkpoint like the live state
        self._next_loop()

    def _next_loop(self) -> None:
        """What one loop has of its own: its checkpoint, its data, its boundaries."""
        plan, session = self._plan, self._session
        # At the end of the previous loop, the live state is that of the checkpoint.
        resume = self._resume = None if plan.ends(plan.done) else plan.resume
        positions = None if resume is None else resume.saved.positions()
        # The Keras arguments that data sources read.
        arguments = {"verbose": int(bool(plan.verbose)), "validation_data": None}
        inputs = self._inputs = session.inputs(arguments, positions)
        self._batches: Batches | None = None
        self._boundaries = Boundaries(
            session, self._state, inputs, logged=self._last_logs
        )

    # Called by the loop. -----------------------------------------------------

    def epochs(
        self, count: int, data: Any = None, options: BatchOptions | None = None
    ) -> Iterator[int]:
        """The remaining epochs of ``count``, with their data if it is known now."""
        plan, session = self._plan, self._session
        if self.in_loop:
            raise wrong_place_error(
                "loop", "Let one loop of a Run end before the next."
            )
        if plan.inside:
            raise wrong_place_error(
                "loop", "A loop was left in the middle: leave the `with` block as well."
            )
        self._next_loop()
        self.in_loop = True
        try:
            if options is not None and (not plan.is_over(count) or plan.ends(count)):
                self._open(data, options)  # refused before anything is changed
            resume = self._resume
            self.begin()
            plan.count_by("loop")
            why = ""
            if (
                resume is not None
                and resume.run.stopped
                and plan.progress.epoch < count
            ):
                why = resume.why_stopped("run.stop()", count)
            del resume
            if options is not None:
                self._resume = None  # frees what was restored
            if plan.is_over(count):
                session.say(nothing_left(str(plan.progress)) + why)
            else:
                session.stop_if_asked()
            while not plan.is_over(count):
                plan.resume = None  # it is in the past from now on
                plan.inside, self._iterated = True, False
                if options is None:
                    resumed = self._resume is not None and plan.progress.batch
                    self._state.begin_epoch(repeated=bool(resumed))
                yield plan.progress.epoch
                self._end_epoch(count)
            if plan.ends(count):
                plan.resume = None
            plan.done, plan.inside = count, False
            session.ended(plan.progress)
        finally:
            self.in_loop = False
            if self._batches is not None:
                self._batches.let_go()

    def batches(self, data: Any, options: BatchOptions) -> Iterator[tuple[int, Any]]:
        """The remaining batches of an epoch, with their steps."""
        if self._iterated:
            raise wrong_place_error(
                "batches",
                "Iterate once per epoch: combine your data into one iterable.",
            )
        self._iterated = True
        plan, session = self._plan, self._session
        source = self._open(data, options)
        source.begin_epoch(session.replay(self._inputs, plan.progress))
        resume, self._resume = self._resume, None
        if resume is not None and plan.progress.batch:
            resume.restore(self._state.parts(resume, self._inputs)[1:])
        del resume  # frees what was restored
        try:
            for batch in source:
                self._boundaries.commit()
                session.drawn(batch)
                self._in_batch, before = True, plan.progress
                try:
                    yield before.step, batch
                finally:  # a loop may be left midway
                    self._in_batch = False
                    plan.progress = _after(before, 1)
                source.trained()
                if source.has_more() is not False and not plan.stopped:
                    self._boundary(lambda: source.has_more() is True)
                if plan.stopped:
                    break
        finally:
            source.end_epoch()
            # What comes now may take any time, without heartbeats.
            session.watch.beat("validating")

    def advance(self, steps: int) -> None:
        """This many steps were done without ``batches``."""
        if self.in_loop:
            raise wrong_place_error(
                "advance", "loop and batches count their own steps."
            )
        plan = self._plan
        plan.count_by("advance")
        self._resume = plan.resume = None  # frees what was restored
        plan.progress = _after(plan.progress, steps)
        self._boundary()

    def log(self, values: Mapping[str, Any]) -> None:
        """Add numbers to the history, with the step of this batch.

        At the ends of an epoch, it is that of the last batch.
        """
        step = self._plan.progress.step
        if self.in_loop and not self._in_batch:
            step = max(0, step - 1)
        self._plan.history.add(step, values)
        if self._in_batch:
            self._session.witness.logged(step + 1, values)

    def save(self) -> None:
        """Save at the next boundary; outside a loop, save now."""
        self._session.request_save()
        if not self.in_loop:
            self._boundary()

    def end(self) -> None:
        """The run ended by itself: save what is not saved yet."""
        progress = self._plan.progress
        if progress != self._saved:
            self._boundaries.at_epoch_end(progress, {}, finished=True)
        self._session.events.emit("ended", **progress._asdict())

    # What happens there. -------------------------------------------------------------

    def begin(self) -> None:
        """Restore the checkpoint, unless this process is already past it."""
        plan, session, resume = self._plan, self._session, self._resume
        began, first, resumed = time.monotonic(), not self._begun, None
        if resume is not None:
            parts = self._state.parts(resume, self._inputs)[1:]
            resume.check(parts)
            resume.restore(parts)
            plan.progress = self._saved = resume.progress
            resumed = resume.checkpoint if first else None
        seconds = time.monotonic() - began
        session.alike = plan.is_alike
        self._boundaries.begin(plan.progress, resumed, seconds, first=first)
        self._begun = True
        if session.group.count > 1:
            require_same_variables(self._state.leaves(), session.group)

    def go_back_to(self, step: int | None) -> Checkpoint:
        """Set everything to a checkpoint, and discard those after it.

        Args:
            step: Which checkpoint; None: the newest.
        """
        if self.in_loop:
            raise wrong_place_error("restore", "Call it before the loop or after it.")
        session = self._session
        session.saving.wait()
        session.resume = "must" if step is None else step
        found = session.choose()
        assert found is not None
        self._begun = False
        self._resume = self._plan.resume_from(found)
        self.begin()
        return found[0]

    def _open(self, data: Any, options: BatchOptions) -> Batches:
        """The batches of the data, the same object in all epochs."""
        if self._batches is not None:
            self._batches.require_same(data, options)
            return self._batches
        plan, session, resume = self._plan, self._session, self._resume
        self._batches = Batches(data, options, self._inputs, session)
        fingerprint = self._batches.fingerprint()
        self._inputs.share.require_same(fingerprint)
        self._state.data = {f"data {name}": x for name, x in fingerprint.items()}
        self._inputs.begin(self._batches)
        if resume is not None and resume.run.data is not None:
            position = self._state.parts(resume, self._inputs)[:1]
            resume.check(position)
            resume.restore(position)
            plan.progress = resume.progress
        if session.alike and not plan.is_alike:
            session.alike = False
            session.witness.begin(plan.progress.step, compares=False)
        return self._batches

    def _boundary(self, certain: Callable[[], bool] = lambda: True) -> None:
        self._boundaries.between_batches(self._plan.progress, certain=certain)

    def _end_epoch(self, count: int) -> None:
        plan, logs, self._resume = self._plan, self._last_logs(), None
        self._boundaries.consensus.out_of_batches(plan.progress)
        step, epoch, _ = plan.progress
        plan.progress = Progress(step, epoch + 1, 0)
        self._boundaries.trained(plan.progress)
        over = plan.is_over(count)
        self._boundaries.at_epoch_end(plan.progress, logs, finished=over)
        if over:
            self._saved = plan.progress

    def _last_logs(self) -> dict[str, float]:
        """The newest numbers that this epoch logged."""
        step, _, batch = self._plan.progress
        return self._plan.history.last(step - batch)


def _after(progress: Progress, steps: int) -> Progress:
    """This many steps later in the same epoch."""
    step, epoch, batch = progress
    return Progress(step + steps, epoch, batch + steps)


@contextlib.contextmanager
def open_run(plan: LoopPlan) -> Iterator[LoopAttempt]:
    """Lock the directory, find the checkpoint, and follow the loop.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        CheckpointNotFoundError: ``resume`` asks for a checkpoint that does not exist,
            or saved checkpoints are gone.
        CorruptCheckpointError: There are checkpoints, but none is intact.
    """
    options = plan.options
    if plan.entered:  # do not start over what this process trained
        options = copy(options)
        options.resume = "auto"
    strategy = strategy_of(plan.objects)
    with open_session(options, strategy, by_hand=True) as session:
        # No progress bar, as with verbose=2 in Keras.
        session.say.set_verbose(2 if plan.verbose else 0)
        if not plan.entered or plan.inside:
            _find_checkpoint(plan, session)
        attempt = plan.attempt = LoopAttempt(plan, session)
        try:
            yield attempt
            if session.recorder is not None:
                session.recorder.end(plan.progress, plan.objects.leaves())
        except Exception:
            session.watch.disarm()
            raise
        finally:
            plan.attempt = None


@contextlib.contextmanager
def enter_run(plan: LoopPlan) -> Iterator[None]:
    """The same around the user's own code; save at its end, unless that is an error."""
    with open_run(plan) as attempt:
        attempt.begin()
        try:
            yield
        except BaseException:
            plan.inside = True
            raise
        attempt.end()


def _find_checkpoint(plan: LoopPlan, session: Session) -> None:
    """Find what to resume from, at the start or after a loop that stopped midway."""
    found = session.choose()
    if found is not None:
        plan.resume_from(found)
        plan.progress, plan.done = found[0].progress, -1
    elif plan.inside:
        raise ResilientError(
            "An earlier loop of this Run stopped midway, before the first checkpoint, "
            "so its objects have changed.",
            received=f"after {plan.progress}",
            hint="Create the objects and the Run again.",
        )
    else:
        for line in session.start_from(plan.starts, plan.objects.models()):
            session.say(line)
    plan.entered, plan.inside = True, False


def inspect(plan: LoopPlan, step: int | None) -> Checkpoint:
    """Restore all objects to a checkpoint, outside any loop."""
    backend, count = get_backend(), replicas.count_under(strategy_of(plan.objects))
    plan = copy(plan)  # the run stays where it is
    found = load(plan.options, step, count)
    resume = plan.resume_from(found)
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
