"""One process's life on a run: what happens when ``fit`` gives us control.

The hook calls in from Keras's loop. Here a checkpoint is checked and restored (all of
it, or none), the run's progress is counted, and snapshots are taken when due. How to
get control, how to copy tensors and how to commit are the business of others.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from resilient import keras_internals, random_state, record, state
from resilient.arguments import DataMode
from resilient.backends.base import Backend, Snapshot
from resilient.build import ensure_built
from resilient.callbacks.states import CallbackStates, monitored
from resilient.checkpoints.checkpoint import Checkpoint
from resilient.comparison import Comparison
from resilient.data import Positioned
from resilient.data.select import ahead_of_training, is_same
from resilient.data.source import Settings
from resilient.distribution import require_one_process
from resilient.encoding.json_values import decode, encode
from resilient.fingerprint import Facts
from resilient.notices import Notices
from resilient.progress import Progress
from resilient.saving import Saving
from resilient.stateful import StatefulObjects

if TYPE_CHECKING:
    from resilient.iterators import TrainingIterator


class Attempt:
    """Follows one ``fit`` of one model.

    Args:
        model: The compiled model.
        backend: Its backend's adapter.
        found: A verified checkpoint to resume from, and what is in it; None starts a
            new run.
        saving: Says when a checkpoint is due, and commits it.
        stateful: The user's own objects, by name.
        data: How the data is to be treated, see ``data.source.Settings``.
        attempts: Host, pid and start of every process that worked on this run.
        on_begin: Told when nothing stands in the way of training any more; with the
            checkpoint that was restored (or is about to be at its batch), whether the
            run is over, and the ``verbose`` of this fit.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        backend: Backend,
        found: tuple[Checkpoint, record.Record] | None,
        saving: Saving,
        stateful: StatefulObjects,
        data: DataMode,
        attempts: Sequence[Mapping[str, Any]],
        on_begin: Callable[[Checkpoint | None, bool, Any], None],
    ) -> None:
        self.model = model
        self.backend = backend
        self.iterator: TrainingIterator | None = None
        self.validation: Positioned | None = None
        self.validated = False  # whether Keras made the iterator for it, in any attempt
        self.callback_list: Any = None
        self.progress = Progress(0, 0, 0)
        self._checkpoint = None if found is None else found[0]
        self._saved = None if found is None else found[1]
        self._due = saving.due  # asked after every batch
        self._save = saving.save
        self._stateful = stateful
        self._data = data
        self._attempts = attempts
        self._on_begin = on_begin
        self._positions: dict[str, Any] = {}
        self._claimed: dict[int, Any] = {}
        self.drawn_ahead: set[str | int] = set()
        self._pending: record.Record | None = None
        self._uncommitted: Callable[[], None] | None = None
        self._snapshot: Snapshot | None = None  # the last one: its memory is reused
        self._last_logs: dict[str, float] | None = None

    # Called by the hook, in the order of a fit. ------------------------------------

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Keras is about to make the training input: local variables of its ``fit``."""
        require_one_process(self.model)
        self._arguments = arguments
        if self._saved is not None:
            self._positions = decode(self._saved.position, self._saved.tensors)

    def settings(self, argument: str) -> Settings:
        """How the data that is ``argument`` of ``fit`` is to be treated."""
        return Settings(
            backend=self.backend,
            mode=self._data,
            verbose=self._arguments["verbose"] not in (0, "0"),
            ahead=keras_internals.looks_ahead(),
            argument=argument,
            strategy=getattr(self.model, "distribute_strategy", None),
            claimed=self._claimed,
            drawn_ahead=self.drawn_ahead,
        )

    def saved(self, argument: str) -> Any:
        """The position that the checkpoint has of that data; None without one."""
        return self._positions.get(argument)

    def begin(self, iterator: "TrainingIterator") -> None:
        """Keras made the training input; that for validation it makes later."""
        self.iterator = iterator
        data, saved = self._arguments["validation_data"], self.saved("validation_data")
        settings = self.settings("validation_data")
        self.validation = ahead_of_training(data, settings, saved)
        if self.validation and saved and not is_same(self.validation, saved["data"]):
            del self._positions["validation_data"]
        self.validated = self._positions.get("validation_data", {}).get("made", False)

    def before_train_begin(self) -> None:
        """No callback was told anything yet: refuse a checkpoint of another run.

        Later would be too late: ``CSVLogger`` empties its file when training begins.
        """
        assert self.iterator is not None
        # Not before: a model's jit_compile is settled when Keras makes its function.
        self._facts = Facts(
            self.model,
            self.iterator.data_adapter.fingerprint(),
            self._arguments,
            self.backend,
        )
        self._facts.now()  # on JAX the optimizer cannot tell while it trains
        saved = self._saved
        if saved is None or self._checkpoint is None:
            return
        callbacks = CallbackStates(self.callback_list.callbacks)
        others = callbacks.differences(saved.run["callbacks"])
        others += self._stateful.differences(saved.run["stateful"])
        comparison = Comparison(self._checkpoint, saved.run, self._facts, self.model)
        comparison.early(others)
        self._comparison = comparison

    def on_train_begin(self) -> None:
        """Every callback was told that training begins: resume, or begin anew."""
        assert self.iterator is not None
        self._callbacks = CallbackStates(
            self.callback_list.callbacks, attempts=self._attempts
        )
        self._notices = Notices(self.model)
        saved, self._saved = self._saved, None
        if saved is None or self._checkpoint is None:
            self._callbacks.begin_anew()
            self._on_begin(None, False, self._arguments["verbose"])
            return
        # Not before: a callback may freeze layers now, and the optimizer has to know.
        layout = saved.run["variables"]
        ensure_built(self.model, self.iterator, layout, self.backend)
        self._comparison.late()
        self.progress = self._checkpoint.progress
        epochs, stopped = self._arguments["epochs"], bool(saved.run["stop_training"])
        over = stopped or self.progress.epoch >= epochs
        # What `fit` reads next, in place of its argument; running.py takes it back.
        self.model._initial_epoch = (
            max(epochs, self.progress.epoch) if over else self.progress.epoch
        )
        self._last_logs = decode(saved.run["epoch_logs"], {})
        self.iterator.resume_at(self._positions["x"], self.progress.batch)
        if self.validation is not None and "validation_data" in self._positions:
            self.validation.resume(self._positions["validation_data"])
        if self.progress.batch and not over:
            # The rest is restored just before the batch, after on_epoch_begin; but
            # on_epoch_begin may rely on what the callbacks know.
            self._callbacks.restore(saved.run["callbacks"], saved.tensors)
            self._pending = saved
        else:
            self._restore(saved)
        self._on_begin(self._checkpoint, over, self._arguments["verbose"])

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch != self.progress.epoch:  # the first one may be initial_epoch
            self.progress = Progress(self.progress.step, epoch, 0)

    def restore_in_epoch(self) -> None:
        """Just before the first batch of a resumed epoch."""
        assert self._pending is not None
        self._restore(self._pending)
        self._pending = None

    def between_batches(self, batch: int, *, certain: bool) -> None:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` is not begun.

        Args:
            batch: Number of the next batch in the epoch.
            certain: Whether it is sure to come. If not, a snapshot is committed only
                once it came: resumed with no batch left, Keras would have no logs.
        """
        self._commit()
        step = self.progress.step - self.progress.batch + batch
        self.progress = Progress(step, self.progress.epoch, batch)
        self._notices.after_step()
        if self._due(self.progress):
            self._take_snapshot(in_epoch=True)
            if certain:
                self._commit()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback was told that the epoch ended."""
        assert self.iterator is not None
        first = self.progress.step - self.progress.batch
        step = first + self.iterator.batches_trained()
        self.progress = Progress(step, epoch + 1, 0)
        self._last_logs = monitored(logs)
        self._notices.after_step()
        if self._uncommitted and self._snapshot:  # no batch came after it
            self._snapshot.release()
        self._uncommitted = None
        finished = self.finished(epoch + 1)
        if self._due(self.progress, finished=finished):
            self._take_snapshot(in_epoch=False, finished=finished)
            self._commit()

    def final_logs(self, logs: Any) -> Any:
        """What ``on_train_end`` gets; in a run that was over, what it got then."""
        return logs or self._last_logs

    def finished(self, epochs_done: int) -> bool:
        return bool(
            self.model.stop_training or epochs_done >= self._arguments["epochs"]
        )

    # Saving and restoring. ---------------------------------------------------------

    def _take_snapshot(self, *, in_epoch: bool, finished: bool = False) -> None:
        assert self.iterator is not None
        if self.callback_list._async_train:
            self.callback_list._flush_futures()
        arrays: dict[str, Any] = {}
        with self.iterator.data_adapter.paused():
            random = random_state.capture(self.backend)
            self._positions["x"] = self.iterator.position(in_epoch=in_epoch)
            if self.validation is not None:
                self._positions["validation_data"] = {
                    "made": self.validated,
                    "data": self.validation.fingerprint(),
                    **self.validation.position(0, held=False),
                }
        positions = encode(self._positions, arrays, "data")
        callbacks = self._callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        live = state.leaves(self.model)
        self._notices.at_save(live, self._callbacks.uncaptured())
        run = {
            "progress": self.progress.to_json(),
            "stop_training": bool(self.model.stop_training),
            "epoch_logs": encode(self._last_logs, {}, "logs"),
            "variables": [leaf.to_json() for leaf in live],
            "arrays": sorted(arrays),
            "random": random,
            "callbacks": callbacks,
            "stateful": stateful,
            "fingerprint": self._facts.now(),
            "learning_rate": encode(self._facts.learning_rate, {}, "rate"),
        }
        tensors = state.live_tensors(self.model, live) | arrays
        self._snapshot = self.backend.snapshot(tensors, reuse=self._snapshot)
        self._uncommitted = partial(
            self._save,
            self.progress,
            record.Content(run, positions, self._snapshot),
            metrics={} if in_epoch else self._last_logs or {},
            finished=finished,
        )

    def _commit(self) -> None:
        """Make a checkpoint of the last snapshot, if there is one to be made."""
        commit, self._uncommitted = self._uncommitted, None
        if commit is not None:
            commit()

    def _restore(self, saved: record.Record) -> None:
        """Set everything, the random state last."""
        live = state.leaves(self.model)
        for old, leaf in zip(saved.run["variables"], live, strict=True):
            self.backend.assign(leaf.target, saved.tensors[old["name"]])
        self._callbacks.restore(saved.run["callbacks"], saved.tensors)
        self._stateful.restore(saved.run["stateful"], saved.tensors)
        self.model.stop_training = bool(saved.run["stop_training"])
        random, now = saved.run["random"], random_state.capture(self.backend)
        left = random_state.drawn_from(random, now) & self.drawn_ahead
        self._notices.at_restore(sorted(left))
        random_state.restore(self.backend, random, leave=left)
