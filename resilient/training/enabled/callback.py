"""``resilient.BackupAndRestore``: Keras's callback of that name, made exact."""

import logging
import secrets
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from resilient.errors import NotSupportedError
from resilient.policies import SaveFreq
from resilient.storage import scratch
from resilient.storage.layout import foreign_names, local_directory
from resilient.training.enabled.api import take_control
from resilient.training.fit.api import ResilientFit
from resilient.training.options import FitOptions, Location
from resilient.training.shown import shown_with
from resilient.training.under_way import is_inside_a_run
from resilient.user_line import ending_at_user_line

logger = logging.getLogger(__name__)

take_control(keras)

# How many fits of this process have finished in each directory.
finished: Counter[Path] = Counter()


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
    @shown_with(FitOptions)
    def __init__(
        self,
        backup_dir: Location,
        save_freq: SaveFreq = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self._options = {"save_freq": save_freq, **options}
        ResilientFit.check_options(checkpoint_dir=backup_dir, **self._options)
        self._directory = local_directory(scratch.instead_of(backup_dir))
        self._delete = delete_checkpoint and not scratch.in_effect()

    def on_train_begin(self, logs: Any = None) -> None:
        if not is_inside_a_run():
            raise NotSupportedError(
                "This fit cannot be backed up: keras.Model.fit was not called with "
                "this callback.",
                received=f"{type(self.model).__qualname__}.fit",
                hint="Make the callback before the call of fit. In a fit of your own, "
                "call super().fit, and pass the callbacks on.",
            )

    def run(self, _: keras.Model, train: Callable[..., Any]) -> Any:
        """Make a call of ``fit``, see ``Calls.fit``."""
        # Two fits have two directories, or a restart would take one for the other.
        number, directory = finished[self._directory] + 1, self._directory
        if number > 1:
            directory = directory.with_name(f"{directory.name}.fit-{number}")
        history = train(checkpoint_dir=directory, **self._options)
        finished[self._directory] = number
        if self._delete:
            _delete(directory)
        return history


def _delete(directory: Path) -> None:
    """Delete a directory: a kill leaves all of it, or nothing under its name."""
    gone = directory.with_name(f"{directory.name}.deleted-{secrets.token_hex(8)}")
    try:
        if directory.is_symlink() or foreign_names(directory):
            raise OSError("it is a link, or holds other files")
        shutil.rmtree(directory.rename(gone))
    except FileNotFoundError:  # another process of this training was faster
        return
    except OSError as error:
        logger.warning("%s is not deleted: %s", directory, error)
