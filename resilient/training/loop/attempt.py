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
from resilient.distributed.checks.model import require_same_variables
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import LoopRun
from resilient.storage.checkpoint import Checkpoint
from resilient.training.attempt import Attempt
from resilient.training.loop.batches import Batches, BatchOptions
from resilient.training.loop.misuse import wrong_place_error
from resilient.training.loop.position import Found, LoopPlan
from resilient.training.loop.run_state import LoopState
from resilient.training.position_change import Moved
from resilient.training.session import Session
from resilient.training.trial import draws_only


class LoopAttempt:
    """Follows a loop.

    Args:
        plan: The run.
        session: The processes, the events and the saves.
    """

    def __init__(self, plan: LoopPlan, session: Session) -> None:
        self._session, self._saving = session, session.saving
        self._standing, self._history = plan.standing, plan.history
        # The Keras arguments that data sources read.
        self._arguments = {"verbose": int(bool(plan.verbose)), "validation_data": None}
        self._state = LoopState(plan, session.backend, session.part, session.group)
        self._begun = self.in_loop = self._in_batch = self._iterated = False
        self._restored: Progress | None = None
        self._moved: Moved | None = None
        self._pending: record.SavedState[LoopRun] | None = None
        self._last_save: Progress | None = None
        self._batches: Batches | None = None
        self._found, self._inputs, self._attempt = self._set_up()

    def _set_up(self) -> tuple[Found | None, DataInputs, Attempt]:
        """The objects for one loop: its checkpoint, its data, and their state."""
        standing = self._standing
        # At the end of the previous loop, the live state is that of the checkpoint.
        found = None if standing.ends(standing.done) else standing.found
        positions = None if found is None else found[1].positions()
        inputs, self._moved = self._session.inputs(self._arguments, positions), None
        args = self._session, self._state, inputs
        return found, inputs, Attempt(*args, logged=self._last_logs)

    # Called by the loop. -----------------------------------------------------

    def epochs(
        self, count: int, data: Any = None, options: BatchOptions | None = None
    ) -> Iterator[int]:
        """The remaining epochs of ``count``, with their data if it is known now."""
        standing = self._standing
        if standing.inside:
            raise wrong_place_error(
                "loop", "A loop was left in the middle: leave the `with` block as well."
            )
        self._batches = None
        self._found, self._inputs, self._attempt = self._set_up()
        found = None if self._found is None else self._found[1]
        self.in_loop = True
        try:
            if options is not None and (
                not standing.is_over(count) or standing.ends(count)
            ):
                self._open(data, options)  # refused before anything is changed
            self.begin()
            standing.count_by("loop")
            if options is None and found is not None and self.progress.batch:
                self._pending = found
            found = None  # or its tensors would live as long as the loop
            if standing.is_over(count):
                self._session.say(f"Nothing left to train at {self.progress}")
            else:
                self._session.stop_if_asked()
            while not standing.is_over(count):
                standing.found = None  # it is in the past from now on
                standing.inside, self._iterated = True, False
                if options is None:
                    self._state.begin_epoch(again=self._pending is not None)
                yield self.progress.epoch
                self._end_epoch(count)
            if standing.ends(count):
                standing.found = None
            standing.done, standing.inside = count, False
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
        self._found = None  # free what was restored
        source.begin_epoch(self._session.replay(self._inputs, self.progress))
        pending, self._pending = self._pending, None
        if pending is not None:
            self._state.restore(pending, self._inputs.drawn_ahead)
        pending = None  # or its tensors would live as long as the epoch
        try:
            while True:
                try:
                    batch = source.next()
                except StopIteration:
                    break
                self._attempt.next_batch_is_there()
                batch = self._session.witness.drawn(batch)
                self._in_batch = True
                try:
                    if draws_only():
                        step, epoch, number = self.progress
                        after = Progress(step + 1, epoch, number + 1)
                        self._session.digests.add_batch(after, batch)
                    else:
                        yield self.progress.step, batch
                finally:  # a loop may be left midway
                    self._in_batch = False
                    self._count(1)
                source.trained()
                more = source.has_more()
                if more is not False and not self._standing.stopped:
                    self._boundary(source.surely_has_more)
                if self._standing.stopped:
                    break
        finally:
            source.end_epoch()
            # What comes now may take any time, without heartbeats.
            self._session.watch.beat("validating")

    def advance(self, steps: int) -> None:
        """This many steps were done without ``batches``."""
        self._standing.count_by("advance")
        self._found = self._standing.found = None  # free what was restored
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
        return self._standing.progress

    @property
    def step(self) -> int:
        """The current step; at the ends of an epoch, the last one."""
        step = self.progress.step
        return step if self._in_batch or not self.in_loop else max(0, step - 1)

    def begin(self) -> None:
        """Restore the checkpoint, unless this process is already past it."""
        self._restore(self._found)
        if self._session.group.count > 1:
            require_same_variables(self._state.leaves(), self._session.group)

    def _restore(self, found: Found | None) -> None:
        began, first, resumed = time.monotonic(), not self._begun, None
        if found is not None:
            self._state.require_fits(*found)
            self._state.restore(found[1], self._inputs.drawn_ahead)
            here = self._moved or found[0]
            self._standing.progress = self._restored = here.progress
            resumed = found[0] if first else None
        seconds = time.monotonic() - began
        self._session.alike = self._state.is_alike()
        self._attempt.begin(self.progress, resumed, seconds, first=first)
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
        self._begun, self._moved = False, None
        loaded = record.of_kind(found, LoopRun)
        self._standing.resume(loaded, self._session.options.allow)
        self._restore(loaded)
        return found[0]

    def _open(self, data: Any, options: BatchOptions) -> Batches:
        """The batches of the data, the same object in all epochs."""
        if self._batches is not None:
            self._batches.require_same(data, options)
            return self._batches
        session = self._session
        args = (data, options, self._inputs, session.parallel, session.strategy)
        self._batches = Batches(*args)
        fingerprint = self._batches.fingerprint()
        self._inputs.share.require_same(fingerprint)
        begun = self._begun
        self._moved = self._state.know_data(fingerprint, self._found, begun=begun)
        if self._moved is not None:
            self._inputs.move(self._moved.position)
            self._standing.progress = self._moved.progress
        if self._session.alike and not self._state.is_alike():
            self._session.alike = False
            self._session.witness.begin(self.progress.step, compares=False)
        self._inputs.begin(self._batches)
        if self._inputs.settings("x").saved is not None:
            self._inputs.resume(self.progress.batch)
        return self._batches

    def _count(self, steps: int) -> None:
        step, epoch, batch = self.progress
        self._standing.progress = Progress(step + steps, epoch, batch + steps)

    def _boundary(self, certain: Callable[[], bool] = lambda: True) -> None:
        self._attempt.between_batches(self.progress, None, certain=certain)

    def _end_epoch(self, count: int) -> None:
        logs, self._found = self._last_logs(), None
        self._attempt.all_trained(self.progress)
        self._standing.progress = Progress(
            self.progress.step, self.progress.epoch + 1, 0
        )
        self._attempt.trained(self.progress)
        if self._standing.is_over(count):
            self._finish(logs)
        else:
            self._attempt.at_epoch_end(self.progress, logs, finished=False)

    def _last_logs(self) -> dict[str, float]:
        """The newest numbers that this epoch logged."""
        return self._history.last(self.progress.step - self.progress.batch)

    def _finish(self, logs: dict[str, float]) -> None:
        self._attempt.at_epoch_end(self.progress, logs, finished=True)
        self._last_save = self.progress
