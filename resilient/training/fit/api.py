"""``model.fit`` that can be killed anywhere and run again.

``fit`` and ``ResilientFit`` find the checkpoint to resume from, run Keras's own ``fit``
with a ``FitAttempt`` following it, and return the History of the whole run. They never
train by themselves, and change nothing in a model until a checkpoint has been checked
completely.

Their parameters are declared by dataclasses. Keras's own are spelled out, but a call
passes on only what its caller gave: a model's own ``fit`` may have other defaults and
fewer or more parameters, and those it adds are passed on too. So nothing makes these
classes. Arguments that nobody takes are refused before anything is done: Keras would do
so only after the directory is locked, and without mentioning our arguments.

Importing this module loads neither Keras nor a backend.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, cast

from resilient.errors import ResilientError, message
from resilient.saving.directory import OnDirectory
from resilient.storage.checkpoint import Checkpoint
from resilient.training.options import (
    FitOptions,
    InDirectory,
    Location,
    RunOptionsOfFit,
)
from resilient.training.shown import method_shown_as, shown_as
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras
    from keras.callbacks import Callback, CallbackList

    from resilient.training.session import Session


@dataclass(frozen=True)
class KerasArguments:
    """What Keras's ``Model.fit`` takes."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: int | Literal["auto"] = "auto"
    callbacks: "Sequence[Callback] | CallbackList | None" = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool | Literal["batch"] = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1


@dataclass(frozen=True)
class OfResilientFit(FitOptions, InDirectory):
    """What ``ResilientFit`` takes."""

    model: "keras.Model"


@dataclass(frozen=True)
class OfFit(KerasArguments, OfResilientFit):
    """What ``fit`` takes."""


# Parameters of `fit` that are ours.
OPTIONS = frozenset(each.name for each in (*fields(InDirectory), *fields(FitOptions)))


def require_known(fit: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown keyword argument.

    Args:
        fit: The model's ``fit``, perhaps overridden by the user: its signature counts.
        given: The keyword arguments of the call.
    """
    parameters = inspect.signature(fit).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in given:
        if name in parameters:
            continue
        hint = "Its arguments are those of model.fit and of resilient.fit."
        if name in OPTIONS:  # an option of ``ResilientFit``
            hint = f"Pass `{name}` where you make the ResilientFit."
        elif close := get_close_matches(name, [*parameters, *OPTIONS], n=1):
            hint = f"Did you mean `{close[0]}`?"
        raise TypeError(message(f"fit() has no argument `{name}`.", hint=hint))


def require_options(given: Iterable[str]) -> None:
    """Raise TypeError for an option that ``resilient.fit`` does not have."""
    for name in given:
        if name not in OPTIONS:
            hint = "Options are those of resilient.fit."
            if close := get_close_matches(name, OPTIONS, n=1):
                hint = f"Did you mean `{close[0]}`?"
            raise TypeError(message(f"There is no option `{name}`.", hint=hint))


@ending_at_user_line
@shown_as(OfFit)
def fit(  # noqa: D417  # the line of dots stands for the others
    model: "keras.Model", *args: Any, checkpoint_dir: Location, **kwargs: Any
) -> "keras.callbacks.History":
    """Train like ``model.fit``, and resume exactly if the process was killed.

    Args:
        model: A compiled Keras model.
        x, ..., validation_freq: The arguments of ``model.fit``, in its order. Further
        arguments of your model's own ``fit`` are passed on.
        ...: Those of ``FitOptions``.

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
    ours = {name: kwargs.pop(name) for name in OPTIONS & kwargs.keys()}
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
    @method_shown_as(OfResilientFit)
    def __init__(
        self, model: "keras.Model", *, checkpoint_dir: Location, **kwargs: Any
    ) -> None:
        require_options(kwargs)
        self._model = model
        self._options = RunOptionsOfFit(checkpoint_dir, FitOptions(**kwargs))
        super().__init__(self._options.store)
        self._session: Session | None = None

    @classmethod
    def check_options(cls, **options: Any) -> None:
        """Raise what the constructor raises for bad options, and for unknown ones."""
        cls(cast("keras.Model", None), **options)

    @ending_at_user_line
    @method_shown_as(KerasArguments)
    def fit(self, *args: Any, **kwargs: Any) -> "keras.callbacks.History":
        """Train, or resume the last attempt; takes the arguments of ``model.fit``."""
        from resilient.keras_internals import require_model

        require_model(self._model)
        require_known(self._model.fit, kwargs)
        return self.fit_by(self._model.fit, args, kwargs)

    def fit_by(
        self,
        plain: "Callable[..., keras.callbacks.History]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "keras.callbacks.History":
        """Like ``fit``, but through a function other than the model's ``fit``."""
        from resilient.keras_internals import replicas
        from resilient.training.fit.attempt import FitPlan
        from resilient.training.fit.hook import require_outermost
        from resilient.training.fit.run import run
        from resilient.training.session import open_session

        model, options = self._model, self._options
        require_outermost(model)
        with open_session(options, replicas.strategy_of(model)) as session:
            self._session = session
            try:
                return run(FitPlan(session, options, model, plain), args, kwargs)
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
        from resilient.keras_internals import replicas, require_model
        from resilient.training.fit.run import restore_model
        from resilient.training.session import load

        require_model(self._model)
        session = self._session
        if session is not None:
            session.saving.wait()
        # While fit runs, it holds the lock.
        with self._store.locked() if session is None else nullcontext():
            found = load(self._options, step, replicas.count(self._model))
            restore_model(self._model, found)
        return found[0]
