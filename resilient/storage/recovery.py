"""Finishes changes of checkpoints that a kill interrupted, and cleans up.

A former checkpoint is deleted only if the new one verifies; otherwise it is restored,
and the new one goes to quarantine.
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
    for former, committed in layout.replaced_paths(directory):
        if layout.leads_nowhere(committed):
            continue  # its disk must be mounted first
        try:
            if os.path.lexists(committed):
                problems = _problems(committed)
                if problems is None:
                    continue  # the right key may be set the next time
                if not problems:
                    sync(directory)  # the kill may have prevented it
                    directories.delete_checkpoints([former])
                    continue
                reason = printable("; ".join(problems))
                quarantine.move(committed, "damaged", reason)
                message = (
                    "%s is damaged, so the checkpoint that it replaced is restored: %s"
                )
                logger.warning(message, committed.name, reason)
            directories.move(former, committed)
            sync(directory)
        except OSError as error:  # loading or saving a checkpoint will report it
            logger.warning("%s stays where it is: %s", former.name, error)


def remove_stale_staging(directory: Path) -> list[Path]:
    """Delete what dead attempts left unfinished; return paths. Needs the lock."""
    recover(directory)
    stale = layout.temporary_paths(directory)
    with contextlib.suppress(OSError):
        if stale:
            # A kill may have come before their markers were on disk.
            sync(directory)
        for path in stale:
            with contextlib.suppress(OSError):
                _finish_deletion(path)
                directories.delete(path)
    return stale


def _finish_deletion(mark: Path) -> None:
    """Delete the rest of a checkpoint that has its manifest, and no more, here."""
    path = mark.with_name(mark.name.partition(".")[0])
    begun = mark.is_dir() and os.listdir(mark) == [layout.MANIFEST]
    if begun and path.is_dir() and not os.path.lexists(path / layout.MANIFEST):
        directories.delete(path)


def _problems(committed: Path) -> list[str] | None:
    """What is wrong with it; None if it is not signed with this key."""
    try:
        found = Checkpoint.read(committed)
        return found.verify() if found.is_trusted() else None
    except ManifestError as error:
        return [str(error)]
