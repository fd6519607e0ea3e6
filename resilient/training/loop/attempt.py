"""One process's attempt at a loop: where it is, and what happens between two batches.

While the user's loop runs, this restores the checkpoint when it begins, counts its
steps, and takes snapshots when they are due. A checkpoint from within an epoch is
restored twice: when the loop begins, since user code at the start of an epoch may read
the state, and before the batch, since that code may change it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from resilient.data.inputs import DataInputs
from resilient.distributed.checks import require_same_variables
from resilient.progress import Progress
from resilient.saving.run_json import LoopRun
from resilient.storage.checkpoint import Checkpoint
from resilient.training.boundaries import Boundaries
from resilient.training.loop.batches import Batches, BatchOptions
from resilient.training.loop.context import wrong_place_error
from resilient.training.loop.position import LoopPlan
from resilient.training.loop.state import LoopState
from resilient.training.resume import Resume
from resilient.training.session import Session


class LoopAttempt:
    """Follows a loop.

    Args:
        plan: The run.
        session: The processes, the events and the saves.
    """

    def __init__(self, plan: LoopPlan, session: Session) -> None:
        self._session, self._saving = session, session.saving
        self._position, self._history = plan.position, plan.history
        # The Keras arguments that data sources read.
        self._arguments = {"verbose": int(bool(plan.verbose)), "validation_data": None}
        self._state = LoopState(plan, session.backend, session.part, session.group)
        self._begun = self.in_loop = self._in_batch = self._iterated = False
        self._restored: Progress | None = None
        self._last_save: Progress | None = None
        self._pending: Resume[LoopRun] | None = None  # until the first batch
        self._batches: Batches | None = None
        self._resume, self._inputs, self._boundaries = self._next_loop()

    def _next_loop(self) -> tuple[Resume[LoopRun] | None, DataInputs, Boundaries]:
        """What one loop has of its own: its checkpoint, its data, its boundaries."""
        position = self._position
        # At the end of the previous loop, the live state is that of the checkpoint.
        resume = None if position.ends(position.done) else position.resume
        positions = None if resume is None else resume.saved.positions()
        inputs = self._session.inputs(self._arguments, positions)
        args = self._session, self._state, inputs
        return resume, inputs, Boundaries(*args, logged=self._last_logs)

    # Called by the loop. -----------------------------------------------------

    def epochs(
        self, count: int, data: Any = None, options: BatchOptions | None = None
    ) -> Iterator[int]:
        """The remaining epochs of ``count``, with their data if it is known now."""
        position = self._position
        if position.inside:
            raise wrong_place_error(
                "loop", "A loop was left in the middle: leave the `with` block as well."
            )
        self._batches = None
        self._resume, self._inputs, self._boundaries = self._next_loop()
        self.in_loop = True
        try:
            if options is not None and (
                not position.is_over(count) or position.ends(count)
            ):
                self._open(data, options)  # refused before anything is changed
            self.begin()
            position.count_by("loop")
            if options is None and self.progress.batch:
                self._pending = self._resume
            if position.is_over(count):
                self._session.say(f"Nothing left to train at {self.progress}")
            else:
                self._session.stop_if_asked()
            while not position.is_over(count):
                position.resume = None  # it is in the past from now on
                position.inside, self._iterated = True, False
                if options is None:
                    self._state.begin_epoch(repeated=self._pending is not None)
                yield self.progress.epoch
                self._end_epoch(count)
            if position.ends(count):
                position.resume = None
            position.done, position.inside = count, False
            self._session.ended(self.progress)
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
        source = self._open(data, options)
        source.begin_epoch(self._session.replay(self._inputs, self.progress))
        if self._pending is not None:
            self._pending.restore(self._state.parts(self._pending, self._inputs)[1:])
        self._resume = self._pending = None  # frees what was restored
        recorder = self._session.recorder
        try:
            while True:
                try:
                    batch = source.next()
                except StopIteration:
                    break
                self._boundaries.commit()
                batch = self._session.witness.drawn(batch)
                self._in_batch = True
                try:
                    if recorder is not None and recorder.draws_only:
                        step, epoch, number = self.progress
                        after = Progress(step + 1, epoch, number + 1)
                        recorder.add_batch(after, batch)
                    else:
                        yield self.progress.step, batch
                finally:  # a loop may be left midway
                    self._in_batch = False
                    self._count(1)
                source.trained()
                more = source.has_more()
                if more is not False and not self._position.stopped:
                    self._boundary(source.surely_has_more)
                if self._position.stopped:
                    break
        finally:
            source.end_epoch()
            # What comes now may take any time, without heartbeats.
            self._session.watch.beat("validating")

    def advance(self, steps: int) -> None:
        """This many steps were done without ``batches``."""
        self._position.count_by("advance")
        self._resume = self._position.resume = None  # frees what was restored
        self._count(steps)
        self._boundary()

    def logged(self, values: Mapping[str, Any]) -> None:
        """Numbers were logged, for this step if it is not over."""
        if self._in_batch:
            self._session.witness.logged(self.step + 1, values)

    def save(self) -> None:
        """Save at the next boundary; outside a loop, save now."""
        self._saving.request()
        if not self.in_loop:
            self._boundary()

    def end(self) -> None:
        """The loop ended by itself: save what is not saved yet."""
        if self.progress not in (self._last_save, self._restored):
            self._finish({})
        self._session.events.emit("ended", **self.progress._asdict())

    # What happens there. -------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        return self._position.progress

    @property
    def step(self) -> int:
        """The current step; at the ends of an epoch, the last one."""
        step = self.progress.step
        return step if self._in_batch or not self.in_loop else max(0, step - 1)

    def begin(self) -> None:
        """Restore the checkpoint, unless this process is already past it."""
        self._restore(self._resume)
        if self._session.group.count > 1:
            require_same_variables(self._state.leaves(), self._session.group)

    def _restore(self, resume: Resume[LoopRun] | None) -> None:
        began, first, resumed = time.monotonic(), not self._begun, None
        if resume is not None:
            parts = self._state.parts(resume, self._inputs)[1:]
            resume.check(parts)
            resume.restore(parts)
            self._position.progress = self._restored = resume.progress
            resumed = resume.checkpoint if first else None
        seconds = time.monotonic() - began
        self._session.alike = self._position.is_alike
        self._boundaries.begin(self.progress, resumed, seconds, first=first)
        self._begun = True

    def go_back_to(self, step: int | None) -> Checkpoint:
        """Set everything to a checkpoint, and discard those after it.

        Args:
            step: Which checkpoint; None: the newest.
        """
        self._saving.wait()
        self._session.resume = "must" if step is None else step
        found = self._session.choose()
        assert found is not None
        self._begun = False
        resume = self._position.resume_from(found, self._session.options.allow)
        self._restore(resume)
        return resume.checkpoint

    def _open(self, data: Any, options: BatchOptions) -> Batches:
        """The batches of the data, the same object in all epochs."""
        if self._batches is not None:
            self._batches.require_same(data, options)
            return self._batches
        session, resume = self._session, self._resume
        args = (data, options, self._inputs, session.parallel, session.strategy)
        self._batches = Batches(*args, trial=session.options.trial)
        fingerprint = self._batches.fingerprint()
        self._inputs.share.require_same(fingerprint)
        self._state.data = {f"data {name}": x for name, x in fingerprint.items()}
        self._inputs.begin(self._batches)
        if resume is not None and resume.run.data is not None:
            position = self._state.parts(resume, self._inputs)[:1]
            resume.check(position)
            resume.restore(position)
            self._position.progress = resume.progress
        if session.alike and not self._position.is_alike:
            session.alike = False
            session.witness.begin(self.progress.step, compares=False)
        return self._batches

    def _count(self, steps: int) -> None:
        step, epoch, batch = self.progress
        self._position.progress = Progress(step + steps, epoch, batch + steps)

    def _boundary(self, certain: Callable[[], bool] = lambda: True) -> None:
        self._boundaries.between_batches(self.progress, None, certain=certain)

    def _end_epoch(self, count: int) -> None:
        logs, self._resume = self._last_logs(), None
        self._boundaries.consensus.out_of_batches(self.progress)
        self._position.progress = Progress(
            self.progress.step, self.progress.epoch + 1, 0
        )
        self._boundaries.trained(self.progress)
        if self._position.is_over(count):
            self._finish(logs)
        else:
            self._boundaries.at_epoch_end(self.progress, logs, finished=False)

    def _last_logs(self) -> dict[str, float]:
        """The newest numbers that this epoch logged."""
        return self._history.last(self.progress.step - self.progress.batch)

    def _finish(self, logs: dict[str, float]) -> None:
        self._boundaries.at_epoch_end(self.progress, logs, finished=True)
        self._last_save = self.progress
