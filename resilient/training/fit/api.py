"""``model.fit`` that can be killed anywhere and run again.

``fit`` and ``ResilientFit`` find the checkpoint to resume from, run Keras's own ``fit``
with a ``FitAttempt`` following it, and return the History of the whole run. They never
train by themselves, and change nothing in a model until a checkpoint has been checked
completely.

Importing this module loads neither Keras nor a backend.
"""

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from resilient.convert.start import StartFrom
from resilient.data import OnDataChange
from resilient.errors import ResilientError
from resilient.policies import KeepPolicy, SaveFreq
from resilient.preemption.options import Preemption
from resilient.saving.checkpointer import OnSaveError
from resilient.saving.choose import Resume
from resilient.saving.directory import OnDirectory
from resilient.serialization.state_dict import Stateful, StatefulObjects
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.remote.options import Upload
from resilient.training.divergence.options import (
    OnNaN,
    Rollback,
    checked_loss_spike,
    checked_on_nan,
)
from resilient.training.fit import arguments, signature
from resilient.training.fit.signature import shown_as
from resilient.training.options import OnEvent, RunOptions
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

    from resilient.training.session import Session


@ending_at_user_line
@shown_as(signature.fit)
def fit(  # noqa: D417  # documents the signature that it is shown with
    model: "keras.Model",
    *args: Any,
    checkpoint_dir: str | os.PathLike[str],
    **kwargs: Any,
) -> "keras.callbacks.History":
    """Train like ``model.fit``, and resume exactly if the process was killed.

    Args:
        model: A compiled Keras model.
        x, ..., validation_freq: The arguments of ``model.fit``, in its order. Further
        arguments of your model's own ``fit`` are passed on.
        checkpoint_dir: Directory for this run's checkpoints, created if missing; or an
            address in an object store, such as ``"s3://bucket/run"``.
        local_dir: For an address: a directory on a local disk. A save is complete once
            it is there; the upload runs in the background. None: a temporary directory.
        upload: For an address: what stays in ``local_dir``, and limits for uploads.
        save_freq: When to save: ``"auto"`` (at the end of each epoch, and in between as
            often as at most 2 % of the time allows, see ``adaptive``), ``"epoch"``, a
            number of batches, or a policy such as ``every(steps=500) |
            every(minutes=10)``. The end of training is always saved. A save that falls
            due during another one is postponed.
        keep: How many checkpoints to keep, or a policy such as
            ``latest(3) | best(1, monitor="val_loss")``.
        resume: ``"auto"`` resumes if there is a checkpoint, ``"must"`` requires one,
            ``"never"`` starts over, a number resumes from that step, and ``"best"``
            resumes from the best checkpoint by the metric that ``keep=best(...)``
            monitors. Checkpoints after that one go to ``quarantine/``.
        start_from: If there is no checkpoint to resume from, start with the weights of
            another run (its directory, or ``DIR/step-...``) or of a file that
            ``import_checkpoint`` can read. Ignored when the run resumes.
        start_layers: Take only weights whose full path (``weight.path``) matches this
            regular expression, such as ``"encoder/.*"``, and whose shape is the same.
            The others keep their values, and are listed. None: all weights, or an
            error.
        stateful: Your own objects with ``state_dict`` and ``load_state_dict``, by name,
            to be saved and restored with the run.
        allow: Differences from the checkpoint to accept, where a resume would otherwise
            be refused: a set of ``"backend"`` (of Keras), ``"batch_size"``,
            ``"callbacks"``, ``"config"`` (of layers), ``"data"``, ``"learning_rate"``,
            ``"metrics"`` and ``"optimizer"``. A ``NotExactWarning`` says what changed,
            and later checkpoints record it.
        on_data_change: What to do if a batch differs after a resume: ``"raise"`` an
            error, or ``"warn"`` and continue with the new data. (To train on a
            different dataset, use ``allow={"data"}``.)
        replay_data: Instead of saving the state of iterators (a large shuffle buffer,
            say), draw all batches again from the start of the epoch or the run.
        digest_every: Record a digest of the whole state in ``events.jsonl`` every so
            many steps, computed in the background. None: no digests.
        on_event: Called with each event that ``events.jsonl`` records: a dict with
            ``"event"`` and ``"time"`` (Unix seconds).
        on_save_error: What to do if a checkpoint cannot be written: ``"raise"`` at the
            next batch or at the end of fit, or ``"warn"`` and continue.
        preemption: How training can be asked to save and stop: signals, cloud notices,
            and the grace period. None: only by touching the file ``stop`` in
            ``checkpoint_dir``. (Touching ``save`` there saves without stopping.)
        on_nan: What to do if the loss is not finite: ``"ignore"`` it, as Keras does;
            ``"stop"`` with a ``DivergedError``, without saving; ``"rollback"`` to go
            back 100 batches, skip the next 300, and continue; or ``Rollback(...)`` with
            other numbers.
        loss_spike: Treat the loss of a batch like NaN if it is more than this many
            times the median of the last 100; needs ``on_nan`` and a positive loss.

    Returns:
        The ``History`` of the whole run, as an uninterrupted ``model.fit`` returns it.

    Raises:
        CheckpointMismatchError: The checkpoint belongs to a different model, data,
            callbacks or settings.
        CorruptCheckpointError: There are checkpoints, but none is intact.
        CheckpointNotFoundError: ``resume`` asks for a checkpoint that does not exist,
            or saved checkpoints are gone.
        CheckpointWriteError: A checkpoint could not be written.
        DataNotResumableError: The data has no position to return to.
        DataWorkerError: A worker process of a PyDataset died.
        DirectoryInUseError: Another run is using ``checkpoint_dir``.
        NotSupportedError: Something cannot be resumed exactly (yet).
        Preempted: Training stopped on request; a ``SystemExit`` with status 143.
        DivergedError: ``on_nan`` says to stop, or a rollback did not help.
        RolledBack: ``on_nan="rollback"`` with data other than arrays: run the script
            again to continue. In scripts, a ``SystemExit`` with status 75.
    """
    ours = {name: kwargs.pop(name) for name in signature.OPTIONS & kwargs.keys()}
    run = ResilientFit(model, checkpoint_dir=checkpoint_dir, **ours)
    return run.fit(*args, **kwargs)


class ResilientFit(OnDirectory):
    """``fit`` as an object, which can also save on request and load checkpoints.

    Args:
        model: A compiled Keras model.
        checkpoint_dir: As in ``fit``, like all that follow.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has an invalid value.
    """

    @ending_at_user_line
    def __init__(
        self,
        model: "keras.Model",
        *,
        checkpoint_dir: str | os.PathLike[str],
        local_dir: str | os.PathLike[str] | None = None,
        upload: Upload | None = None,
        save_freq: SaveFreq = "auto",
        keep: int | KeepPolicy = 3,
        resume: Resume = "auto",
        start_from: str | os.PathLike[str] | None = None,
        start_layers: str | None = None,
        stateful: Mapping[str, Stateful] | None = None,
        allow: Collection[str] = (),
        on_data_change: OnDataChange = "raise",
        replay_data: bool = False,
        digest_every: int | None = None,
        on_event: OnEvent | None = None,
        on_save_error: OnSaveError = "raise",
        preemption: Preemption | None = signature.PREEMPTION,
        on_nan: OnNaN = "ignore",
        loss_spike: float | None = None,
    ) -> None:
        self._model = model
        options = RunOptions.checked(
            checkpoint_dir,
            local_dir=local_dir,
            upload=upload,
            save_freq=save_freq,
            keep=keep,
            resume=resume,
            on_data_change=on_data_change,
            replay_data=replay_data,
            digest_every=digest_every,
            on_event=on_event,
            on_save_error=on_save_error,
            preemption=preemption,
            allow=allow,
        )
        self._start_from = StartFrom.checked(start_from, start_layers)
        self._stateful = StatefulObjects(stateful)
        self._on_nan = checked_on_nan(on_nan)
        self._loss_spike = checked_loss_spike(loss_spike, on_nan)
        if isinstance(self._on_nan, Rollback):
            back = KeepPolicy(back=self._on_nan.steps)
            options = replace(options, keep=options.keep | back)
        super().__init__(options.store)
        self._options = options
        self._session: Session | None = None

    @classmethod
    def check_options(cls, **options: Any) -> None:
        """Raise what the constructor raises for bad options, and for unknown ones."""
        arguments.require_options(options, signature.OPTIONS)
        cls(cast("keras.Model", None), **options)

    @ending_at_user_line
    @shown_as(signature.keras_fit)
    def fit(self, *args: Any, **kwargs: Any) -> "keras.callbacks.History":
        """Train, or resume the last attempt; takes the arguments of ``model.fit``."""
        from resilient.state.model_type import require_model

        require_model(self._model)
        arguments.require_known(self._model.fit, kwargs, signature.OPTIONS)
        return self.fit_by(self._model.fit, args, kwargs)

    def fit_by(
        self,
        plain: "Callable[..., keras.callbacks.History]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "keras.callbacks.History":
        """Like ``fit``, but through a function other than the model's ``fit``."""
        from resilient.state import replicas
        from resilient.training.fit.draw_only import shortened
        from resilient.training.fit.hook import require_outermost
        from resilient.training.fit.plan import FitPlan
        from resilient.training.fit.run import run
        from resilient.training.opening import open_session
        from resilient.training.trial import draws_only

        require_outermost(self._model)
        args, kwargs = shortened(self._model.fit, args, kwargs)
        strategy = replicas.strategy_of(self._model)
        with open_session(self._options, strategy) as session:
            plan = FitPlan(
                session,
                self._model,
                plain,
                self._stateful,
                "ignore" if draws_only() else self._on_nan,
                self._loss_spike,
                self._start_from,
            )
            self._session = session
            try:
                return run(plan, args, kwargs)
            finally:
                self._session = None

    @ending_at_user_line
    def save(self) -> None:
        """Ask a running ``fit`` (from a callback, say) to save after this batch.

        Raises:
            ResilientError: No fit is running.
        """
        if self._session is None:
            raise ResilientError(
                "save() works only while fit is running. (The end of training is "
                "always saved.)",
                hint="Call it from a callback, or use model.save.",
            )
        self._session.request_save()

    @ending_at_user_line
    def restore(self, step: int | None = None) -> Checkpoint:
        """Load a checkpoint's weights and optimizer into the model, to inspect them.

        The next ``fit`` still resumes from the newest checkpoint.

        Args:
            step: Which checkpoint; the newest intact one by default.

        Returns:
            The checkpoint that was loaded.

        Raises:
            CheckpointNotFoundError: There is none, or none at that step.
            CheckpointMismatchError: It belongs to a different model; nothing was
                changed.
        """
        from resilient.state import replicas
        from resilient.state.model_type import require_model
        from resilient.training.fit.run import restore_model
        from resilient.training.session import load

        require_model(self._model)
        session = self._session
        if session is not None:
            session.saving.wait()
        # While fit runs, it holds the lock.
        with self._store.looking() if session is None else nullcontext():
            found = load(self._options, step, replicas.count(self._model))
            restore_model(self._model, found)
        return found[0]
