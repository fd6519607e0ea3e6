"""Finishes changes of checkpoints that a kill interrupted, and tidies after it.

The former one is deleted only where the new one verifies; else it comes back, and the
new one goes to quarantine.
"""

import contextlib
import logging
import os
from pathlib import Path

from resilient.errors import printable
from resilient.storage import directories, layout, quarantine
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.files import sync
from resilient.storage.manifest import ManifestError

logger = logging.getLogger(__name__)


def recover(directory: Path) -> None:
    """Finish what was interrupted. Needs the lock.

    Raises:
        NotSupportedError: A later version of this library wrote the new one.
    """
    for path in layout.unfinished_paths(directory):
        _finish(path)
    for former, committed in layout.replaced_paths(directory):
        if layout.leads_nowhere(committed):
            continue  # to be mounted, then verified
        try:
            if os.path.lexists(committed):
                problems = _problems(committed)
                if problems is None:
                    continue  # the right key may be set the next time
                if not problems:
                    sync(directory)  # the kill may have come before that
                    directories.delete_checkpoints([former])
                    continue
                reason = printable("; ".join(problems))
                quarantine.move(committed, "damaged", reason)
                message = "%s is damaged, so the one that it was to replace is back: %s"
                logger.warning(message, committed.name, reason)
            directories.move(former, committed)
            sync(directory)
        except OSError as error:  # that is seen when a checkpoint is loaded or saved
            logger.warning("%s stays where it is: %s", former.name, error)


def remove_stale_staging(directory: Path) -> list[Path]:
    """Delete what dead attempts left unfinished. Needs the lock; returns the paths."""
    recover(directory)
    stale = layout.staging_paths(directory)
    with contextlib.suppress(OSError):
        if stale:
            # A kill may have come before the disk knew that these are none.
            sync(directory)
        for path in stale:
            with contextlib.suppress(OSError):
                directories.delete(path)
    return stale


def _finish(path: Path) -> None:
    """What a kill left under its own name is a checkpoint if it is complete."""
    try:
        if os.path.lexists(path) and _problems(path):
            directories.delete_at_once(path)
        else:
            sync(path.parent)
            layout.unfinished_path(path).unlink()
    except OSError as error:
        logger.warning("%s stays unfinished where it is: %s", path.name, error)


def _problems(committed: Path) -> list[str] | None:
    """What is wrong with it; None where it is signed with another key, or not."""
    try:
        found = Checkpoint.read(committed)
        return found.verify() if found.is_trusted() else None
    except ManifestError as error:
        return [str(error)]
