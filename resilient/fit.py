"""``model.fit`` that can be killed anywhere and run again.

``fit`` and ``ResilientFit`` find the checkpoint to resume from, let Keras's own ``fit``
run with an ``Attempt`` following it, and return the History of the whole run. They
never train by themselves, and they change nothing in a model before a checkpoint has
been checked whole.

Importing this module loads neither Keras nor a backend.
"""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from resilient import resuming
from resilient.arguments import (
    DataMode,
    OnEvent,
    Resume,
    checked_data,
    checked_on_event,
    checked_on_save_error,
    checked_resume,
)
from resilient.checkpoints import layout
from resilient.checkpoints.checkpoint import Checkpoint
from resilient.checkpoints.lock import DirectoryLock
from resilient.checkpoints.store import Store
from resilient.errors import ResilientError, describe
from resilient.events import Events, attempts_so_far
from resilient.policies import KeepPolicy, SavePolicy, keep_policy, save_policy
from resilient.saving import OnSaveError, Saving
from resilient.stateful import Stateful, StatefulObjects

if TYPE_CHECKING:
    import keras

SaveFreq = Literal["epoch"] | int | SavePolicy


def fit(
    model: "keras.Model",
    *args: Any,
    checkpoint_dir: str | os.PathLike[str],
    save_freq: SaveFreq = "epoch",
    keep: int | KeepPolicy = 3,
    resume: Resume = "auto",
    stateful: Mapping[str, Stateful] | None = None,
    data: DataMode = "exact",
    on_event: OnEvent | None = None,
    on_save_error: OnSaveError = "raise",
    **kwargs: Any,
) -> "keras.callbacks.History":
    """Train like ``model.fit``; run again after a kill, go on as if nothing happened.

    Args:
        model: A compiled Keras model.
        *args: Positional arguments of ``model.fit``, in its order.
        checkpoint_dir: Local directory of this run's checkpoints; made if missing.
        save_freq: ``"epoch"``, a number of batches, or a policy such as
            ``every(steps=500) | every(minutes=10)``. The end of training is saved
            always. Saves that are due while one is being written are put off.
        keep: How many checkpoints to keep, or a policy such as
            ``latest(3) | best(1, monitor="val_loss")``.
        resume: ``"auto"`` resumes if there is a checkpoint, ``"must"`` insists on one,
            ``"never"`` starts anew (older checkpoints go to ``quarantine/``), a number
            resumes from that step.
        stateful: Your own objects with ``state_dict`` and ``load_state_dict``, by name:
            saved and restored with the run.
        data: ``"exact"`` refuses data that comes back different after a resume;
            ``"warn"`` says so and goes on with what comes; ``"replay"`` keeps no state
            of iterators (a large shuffle buffer, say) but draws again from the start.
        on_event: Called with each event (a dict with ``"event"`` and ``"time"``, Unix
            seconds); the same that ``events.jsonl`` records.
        on_save_error: ``"raise"`` when a checkpoint could not be written, at the next
            batch or at the end of fit, or ``"warn"`` and train on.
        **kwargs: Keyword arguments of ``model.fit``.

    Returns:
        The ``History`` of the whole run, as an uninterrupted ``model.fit`` returns it.

    Raises:
        CheckpointMismatchError: The checkpoint is of another model, data or callbacks.
        CorruptCheckpointError: There are checkpoints and none is intact.
        CheckpointNotFoundError: ``resume`` asks for one that is not there.
        CheckpointWriteError: A checkpoint could not be written.
        DataNotResumableError: The data has no position to get back to.
        DataWorkerError: A process that makes batches of a PyDataset died.
        DirectoryInUseError: Another run is using ``checkpoint_dir``.
        NotSupportedError: Something that cannot be resumed exactly (yet).
    """
    run = ResilientFit(
        model,
        checkpoint_dir=checkpoint_dir,
        save_freq=save_freq,
        keep=keep,
        resume=resume,
        stateful=stateful,
        data=data,
        on_event=on_event,
        on_save_error=on_save_error,
    )
    return run.fit(*args, **kwargs)


class ResilientFit:
    """The same as ``fit``, as an object to ask about the run.

    Args:
        model: A compiled Keras model.
        checkpoint_dir: As in ``fit``, like all that follow.

    Raises:
        TypeError: An argument is of another type than it can be.
        ValueError: An argument has a value that means nothing.
    """

    def __init__(
        self,
        model: "keras.Model",
        *,
        checkpoint_dir: str | os.PathLike[str],
        save_freq: SaveFreq = "epoch",
        keep: int | KeepPolicy = 3,
        resume: Resume = "auto",
        stateful: Mapping[str, Stateful] | None = None,
        data: DataMode = "exact",
        on_event: OnEvent | None = None,
        on_save_error: OnSaveError = "raise",
    ) -> None:
        self._model = model
        self._store = Store(checkpoint_dir)
        self._policy = save_policy(save_freq)
        self._keep = keep_policy(keep)
        self._resume = checked_resume(resume)
        self._stateful = StatefulObjects(stateful)
        self._data = checked_data(data)
        self._on_event = checked_on_event(on_event)
        self._on_save_error = checked_on_save_error(on_save_error)
        self._saving: Saving | None = None
        if self._keep.monitors and not self._policy.epochs:
            raise ValueError(
                describe(
                    "keep=best(...) compares checkpoints of epochs' ends, and this "
                    "save_freq makes none.",
                    f"save_freq={save_freq!r}",
                    "Add every(epochs=1) to save_freq.",
                )
            )

    def fit(self, *args: Any, **kwargs: Any) -> "keras.callbacks.History":
        """Train, resuming where the last attempt was; arguments as ``model.fit``."""
        from resilient.running import record_reader, require_model, run_attempt

        require_model(self._model)
        layout.make_directory(self._store.directory)
        with DirectoryLock(self._store.directory):
            events = Events(self._store.directory, self._on_event)
            anew = self._resume == "never"
            attempts = [] if anew else attempts_so_far(self._store.directory)
            events.emit("started")
            self._store.remove_stale_staging()
            try:
                return run_attempt(
                    self._model,
                    args,
                    kwargs,
                    # Not kept here: it is as large as the state.
                    found=resuming.find(
                        self._store, self._resume, record_reader(), events
                    ),
                    stateful=self._stateful,
                    data=self._data,
                    events=events,
                    attempts=attempts,
                    settle=lambda: resuming.discard(self._store, self._resume, events),
                    make_saving=lambda environment: self._make_saving(
                        events, environment
                    ),
                )
            finally:
                self._saving = None

    def save(self) -> None:
        """Ask a running ``fit`` (from a callback, say) to save after this batch.

        Raises:
            ResilientError: No fit is running.
        """
        if self._saving is None:
            raise ResilientError(
                describe(
                    "There is nothing to save outside of fit: its end is saved always.",
                    "save() while no fit of this object runs",
                    "Call it from a callback, or use model.save.",
                )
            )
        self._saving.request()

    def restore(self, step: int | None = None) -> Checkpoint:
        """Load a checkpoint's weights and optimizer into the model, to look at them.

        The next ``fit`` resumes from the newest checkpoint all the same.

        Args:
            step: Which checkpoint; the newest intact one by default.

        Returns:
            The checkpoint that was loaded.

        Raises:
            CheckpointNotFoundError: There is none, or none of that step.
            CheckpointMismatchError: It is of another model; nothing was changed.
        """
        from resilient.running import record_reader, require_model, restore_model

        require_model(self._model)
        directory = self._store.directory
        if not directory.is_dir():
            raise resuming.not_found(directory)
        if self._saving is not None:  # fit is running and holds the lock
            self._saving.wait()
        with nullcontext() if self._saving is not None else DirectoryLock(directory):
            if step is not None:
                found = self._store.load(step, record_reader())
            else:
                found = resuming.newest(self._store, record_reader())
            restore_model(self._model, found)
        return found[0]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints, oldest first."""
        return self._store.checkpoints()

    @property
    def latest(self) -> Checkpoint | None:
        """The newest committed checkpoint, if there is one."""
        return next(reversed(self.checkpoints), None)

    def _make_saving(self, events: Events, environment: Mapping[str, str]) -> Saving:
        self._saving = Saving(
            self._store,
            policy=self._policy,
            keep=self._keep,
            events=events,
            environment=environment,
            on_error=self._on_save_error,
        )
        return self._saving
