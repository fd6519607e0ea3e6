"""Keras's epoch iterators with a position, for training and validation data.

Keras's generator yields step numbers together with an iterator that it never pulls: to
start at batch k is to skip its first yields and hand out an iterator that stands at k.
The generator runs on between ``on_train_batch_end(k - 1)`` and
``on_train_batch_begin(k)``: there snapshots are taken and state is restored.
"""

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from resilient import keras_internals
from resilient.data.inputs import DataInputs
from resilient.data.select import adapter_for, are_arrays
from resilient.saving import reshard
from resilient.serialization.position import DataPosition, TrainingPosition
from resilient.serialization.rng import kept_states
from resilient.state.rng import kept_random_state
from resilient.training.rollback import leads_nowhere

if TYPE_CHECKING:
    from resilient.training.fit.attempt import FitAttempt
    from resilient.training.session import Session

Base = keras_internals.backend_epoch_iterator()

_ON_TENSORFLOW = keras_internals.BACKEND == "tensorflow"  # Python sees no batch
_DATA = ("x", "y", "sample_weight", "class_weight")


class TrainingIterator(Base):  # type: ignore[misc, valid-type]
    """The training input of one ``fit``, which can start at batch k."""

    attempt: "FitAttempt"  # once training begins

    def __init__(
        self, session: "Session", inputs: DataInputs, arguments: Mapping[str, Any]
    ) -> None:
        self._session, self.inputs = session, inputs
        self._armed = False
        self._resume: tuple[TrainingPosition, int] | None = None
        self._position: DataPosition | None = None
        self._begun = 0  # first batch of the training step that was last begun
        inputs.only_arrays = are_arrays(arguments)
        self.given = arguments["x"]
        self._ran_out = False  # the data ended where Keras asked for more
        self._retraces = False
        kept = {k: v for k, v in arguments.items() if k not in _DATA}
        adapter = adapter_for(arguments, inputs.settings("x"))
        super().__init__(x=adapter, **kept)
        self._checksums: Any = None  # of batches that Python does not see
        self._start = 0  # how many of them the live iterator left out
        self._drawn_by_all = session.parallel.draws_all(arguments["x"])
        inputs.share.divide(adapter, arguments["x"], "x", self.steps_per_epoch)

    def _followed(self, dataset: Any) -> Any:
        """TensorFlow's dataset, computing checksums unless it is a distributed one."""
        import tensorflow as tf

        from resilient.data.tf_data.adapter import Checksums

        if self._checksums is None and isinstance(dataset, tf.data.Dataset):
            self._checksums = Checksums(dataset)
            options = tf.data.Options()  # a batch that is prefetched has its checksum
            options.experimental_optimization.inject_prefetch = False
            self._checksums.dataset = self._checksums.dataset.with_options(options)
        return dataset if self._checksums is None else self._checksums.dataset

    def _note_batches(self) -> None:
        """A step was trained: record the checksums of its batches, if there are any."""
        recorder, before = self._session.recorder, self._drawn() - self._start
        if recorder is not None and self._checksums is not None:
            for number in range(len(self.last_batches())):
                recorder.note(self._checksums.of(before + number + 1))

    def reset(self) -> None:
        super().reset()
        # The first reset ends fit's symbolic build, which peeks at one batch.
        self._armed = True

    def __next__(self) -> Any:
        item = super().__next__()
        if self._retraces:
            self.attempt.state.retracing.before_step("train_function", item[2])
        return item

    def resume_at(self, position: TrainingPosition, batch: int) -> None:
        """Make the next epoch start at ``batch``, with the input at ``position``."""
        reshard.require_same_batches(position, drawn_by_all=self._drawn_by_all)
        self._resume = (position, batch)
        self._num_batches = position.num_batches  # unknown at first, then learned
        self.data_adapter.resume(position.data)

    def let_go(self) -> None:
        """Drop the source of the batches, which fit no longer needs.

        If it were left to the garbage collector, collecting a tf.data iterator could
        block everything for as long as it has lived, up to a minute.
        """
        self._current_iterator = self._epoch_iterator = self.given = None

    def position(self, *, in_epoch: bool) -> TrainingPosition:
        """Where the input is: after the batches that were trained.

        Args:
            in_epoch: Between two batches; otherwise at an epoch's end.
        """
        held, drawn = True, self._drawn()
        if not in_epoch:
            # With steps_per_epoch Keras holds on to the iterator in the next epoch.
            steps, live = self.steps_per_epoch, self._current_iterator
            held = steps is not None and live is not None
            drawn = int(self._steps_seen) if held else 0
        length = self._num_batches
        return TrainingPosition(
            held=held,
            num_batches=None if length is None else int(length),
            drawn_by_all=self._drawn_by_all,
            data=self.data_adapter.position(drawn, held=held),
        )

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""
        return self._begun if self._ran_out else self.last_batches().stop

    def last_batches(self) -> range:
        """Numbers of the batches trained in the last step (steps_per_execution)."""
        end = int(self._begun + self.steps_per_execution)
        limit = self.steps_per_epoch or self._num_batches
        return range(self._begun, min(end, limit) if limit else end)

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Note whether Keras has to catch anything, and how long the epoch was then.

        On torch, it is entered for each batch.
        """
        known: int | None = None
        with super().catch_stop_iteration():
            self._ran_out = True
            try:
                yield
            except BaseException:
                known = self.data_adapter.sure_length  # Keras may change it now
                raise
            self._ran_out = False
        if self._ran_out and not self.steps_per_epoch:
            # The first batch of the step in which the data ran out.
            least = known and max(0, known - int(self.steps_per_execution) + 1)
            self.inputs.check_length(self._begun, least)

    def _drawn(self) -> int:
        """Batches of the live iterator that were trained, between two batches."""
        return int(self._steps_seen - self.steps_per_execution)

    def _has_more(self) -> bool:
        """Whether the live iterator is sure to have another batch."""
        length = self.data_adapter.num_batches
        return length is not None and self._drawn() < length

    def _get_iterator(self) -> Any:
        position, self._position = self._position, None
        arrays = self.inputs.only_arrays  # which need no drawing again
        self._start = position.drawn if position is not None and arrays else 0
        with contextlib.ExitStack() as stack:
            if position is not None:
                replay = self._session.replay(self.inputs, self.attempt.progress)
                stack.enter_context(replay)
                self.data_adapter.seek(position)
            if self._armed:
                self.data_adapter.before_iterator()
            batches, hidden = super()._get_iterator(), _ON_TENSORFLOW
            if hidden and self._armed and self._session.recorder is not None:
                batches = self._followed(batches)
            batches = self.data_adapter.wrap(batches)
            if hidden or not self._armed:
                return batches
            # On torch, this begins to iterate, and draws an order.
            return map(self._session.drawn, batches)

    def _enumerate_iterator(self) -> Iterator[Any]:
        batches = super()._enumerate_iterator()
        if not self._armed:
            yield from batches
            return
        attempt, adapter, certain = self.attempt, self.data_adapter, self._has_more
        attempt.state.retracing.before_batches("train_function", self)
        self._retraces = attempt.state.retracing.of_steps
        resume, self._resume = self._resume, None
        position, first = resume or (None, 0)
        if position is not None and position.held:
            self._position, self._current_iterator = position.data, None
        for begin, end, iterator in batches:
            if begin < first:
                continue
            if position is None and begin:
                adapter.on_trained(self._drawn())
            elif position is not None and position.held:
                self._steps_seen = position.data.drawn + self.steps_per_execution
            position = None
            left_out = attempt.before_batch(begin, end, certain)
            self._begun = begin
            if not left_out:
                yield begin, end, iterator
                self._note_batches()
                continue
            # Draw what would be trained now.
            draws = keras_internals.generation.draws_in_step(self.steps_per_execution)
            drawn = sum(1 for _ in islice(iterator, draws))
            if drawn < draws and self.num_batches is None:
                raise leads_nowhere()


class ValidationIterator(Base):  # type: ignore[misc, valid-type]
    """The validation input of one ``fit``; gives heartbeats.

    Arrays are always validated in the same order, so they need no position.
    """

    def __init__(self, attempt: "FitAttempt", data: Any, **arguments: Any) -> None:
        self._attempt = attempt
        super().__init__(**arguments)
        share, steps = attempt.iterator.inputs.share, self.steps_per_epoch
        share.divide(self.data_adapter, data, "validation_data", steps)

    def __next__(self) -> Any:
        item = super().__next__()
        if self._attempt.state.retracing.of_steps:
            self._attempt.state.retracing.before_step("test_function", item[2])
        return item

    def _enumerate_iterator(self) -> Iterator[Any]:
        session = self._attempt.session
        self._attempt.state.retracing.before_batches("test_function", self)
        for item in super()._enumerate_iterator():
            session.watch.beat("validating")
            # No snapshot is taken during validation.
            session.watch.stop_unless_time(session.saving.slowest)
            yield item


class PositionedValidationIterator(ValidationIterator):
    """Like ``ValidationIterator``, for data that has a position.

    Every evaluation begins a new iterator, and no snapshot is taken during one: only
    state that outlasts an iterator counts.
    """

    def __init__(self, attempt: "FitAttempt", **arguments: Any) -> None:
        rest = {k: v for k, v in arguments.items() if k not in _DATA}
        inputs = attempt.iterator.inputs
        settings = inputs.settings("validation_data")
        early, made, saved = inputs.validation, inputs.validated, settings.saved
        inputs.validated = True
        with contextlib.ExitStack() as stack:
            # As in Keras, whatever random numbers it draws. But if the uninterrupted
            # run created it in an earlier epoch, leave no trace of it now, and draw
            # nothing for training meanwhile, which would be undone.
            if made:
                stack.enter_context(attempt.iterator.data_adapter.frozen())
                ahead, claimed = inputs.drawn_ahead, settings.claimed
                others = {key: claimed[key] for key in claimed if key not in ahead}
                stack.enter_context(kept_random_state(inputs.backend, leave=ahead))
                stack.enter_context(kept_states(others))
                saved = early.position(0, held=False) if early else saved
            adapter = inputs.validation = early or adapter_for(arguments, settings)
            super().__init__(attempt, arguments["x"], x=adapter, **rest)
            if made and saved and (early or inputs.knows_validation(adapter)):
                adapter.resume(saved)

    def _get_iterator(self) -> Any:
        return self.data_adapter.wrap(super()._get_iterator())
