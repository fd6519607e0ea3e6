"""``resilient.BackupAndRestore``: Keras's callback of that name, made exact."""

import glob
import inspect
import logging
import secrets
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from resilient.errors import NotSupportedError
from resilient.policies import SaveFreq
from resilient.storage import scratch
from resilient.storage.layout import foreign_names, local_directory
from resilient.training.enabled import intercept
from resilient.training.enabled.intercept import Fit
from resilient.training.fit.api import ResilientFit
from resilient.training.options import FitOptions, Location
from resilient.training.shown import method_shown_as
from resilient.user_line import ending_at_user_line

logger = logging.getLogger(__name__)

# How many fits of this process have finished in each directory.
_finished: Counter[Path] = Counter()


@dataclass(frozen=True)
class InBackupDir:
    """Where ``BackupAndRestore`` saves."""

    backup_dir: Location


@dataclass(frozen=True)
class OfBackupAndRestore(FitOptions, InBackupDir):
    """What ``BackupAndRestore`` takes."""

    save_freq: SaveFreq = "epoch"
    double_checkpoint: bool = False
    delete_checkpoint: bool = True


class BackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]
    """Keras's callback of the same name, but as exact as ``resilient.fit``.

    A ``model.fit`` with this callback resumes at the very batch where it was
    interrupted, and ends as if it had never been.

    Args:
        backup_dir: Local directory of this fit's checkpoints; created if missing. A
            second fit of the program with the same ``backup_dir`` uses a directory
            beside it, whose name ends in ``.fit-2``.
        save_freq: As in ``resilient.fit``: ``"epoch"``, a number of batches,
            ``"auto"`` or a policy.
        double_checkpoint: Accepted for compatibility. Earlier checkpoints are always
            kept, as many as ``keep`` says.
        delete_checkpoint: Delete ``backup_dir`` when training has finished; the next
            run of the program then trains from scratch.
        **options: The other options of ``resilient.fit``.

    Raises:
        TypeError: An argument is unknown, or has the wrong type.
        ValueError: An argument has an invalid value.
    """

    @ending_at_user_line
    @method_shown_as(OfBackupAndRestore)
    def __init__(
        self,
        backup_dir: Location,
        save_freq: SaveFreq = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        options = {"save_freq": save_freq, **options}
        self.control = _Control(backup_dir, options, delete=delete_checkpoint)

    def on_train_begin(self, logs: Any = None) -> None:
        from resilient.training.under_way import is_inside_a_run

        if not self.control.active:
            if is_inside_a_run():
                raise NotSupportedError(
                    "This fit is already saved by resilient.fit or another "
                    "BackupAndRestore.",
                    hint="Leave this callback out.",
                )
            raise NotSupportedError(
                "This fit cannot be backed up: keras.Model.fit was not called with "
                "this callback.",
                received=f"{type(self.model).__qualname__}.fit",
                hint="Make the callback before the call of fit. In a fit of your own, "
                "call super().fit, and pass the callbacks on.",
            )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it has no lasting state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class _Control:
    """Runs the fits of one callback.

    Attributes:
        active: Whether one is running.
    """

    def __init__(self, directory: Any, options: dict[str, Any], *, delete: bool):
        self._options = {"checkpoint_dir": directory, **options}
        ResilientFit.check_options(**self._options)
        directory = scratch.instead_of(directory)
        self._directory = local_directory(directory)
        self._delete = delete and not scratch.in_effect()
        self.active = False
        self._in_control = intercept.in_control()

    def fit(
        self, model: Any, plain: Fit, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> keras.callbacks.History:
        """See ``intercept.Resumable``."""
        # Two fits have two directories, or a restart would take one for the other.
        number, directory = _finished[self._directory] + 1, self._directory
        if number > 1:
            directory = directory.with_name(f"{directory.name}.fit-{number}")
        run = ResilientFit(model, **self._options | {"checkpoint_dir": directory})
        self.active = True
        try:
            history = run.fit_by(plain, args, kwargs)
        finally:
            self.active = False
        _finished[self._directory] = number
        if self._delete:
            _delete(directory)
        return history


def callbacks_of(
    plain: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sequence[Any]:
    """The callbacks among the arguments of ``fit``."""
    try:
        given = inspect.signature(plain).bind(model, *args, **kwargs).arguments
    except TypeError:
        return ()  # Keras says what is wrong
    found = given.get("callbacks")
    found = getattr(found, "callbacks", found)  # of a CallbackList
    return found if isinstance(found, (list, tuple)) else (found,)


def _delete(directory: Path) -> None:
    """Delete a directory: a kill leaves all of it, or nothing under its name."""
    gone = f"{directory.name}.deleted-"
    others = "it is a link" if directory.is_symlink() else ""
    if names := foreign_names(directory):
        others = f"it holds other files: {', '.join(map(repr, names[:5]))}"
    if others:
        logger.warning("%s is not deleted: %s", directory, others)
        return
    try:
        directory.rename(directory.with_name(gone + secrets.token_hex(8)))
        for path in directory.parent.glob(glob.escape(gone) + "*"):
            shutil.rmtree(path)
    except FileNotFoundError:  # another process of this training was faster
        return
    except OSError as error:
        logger.warning("%s cannot be deleted: %s", directory, error)
