"""Syncs the files beside the checkpoints that a run on another machine also needs."""

import contextlib
import os
from pathlib import Path

from resilient.storage import files, layout
from resilient.storage.remote.objects import Objects

_UNKNOWN = b"not known"


class SideFiles:
    """``rollbacks.json`` and the events of all processes, near and far.

    Args:
        objects: The store.
        directory: The local directory.
    """

    def __init__(self, objects: Objects, directory: Path) -> None:
        self._objects, self._directory = objects, directory
        self._put: bytes | None = _UNKNOWN

    def rollbacks(self) -> bytes | None:
        """Which batches the run skips; None if it skips none."""
        try:
            return files.read_file(self._directory, layout.ROLLBACKS, files.JSON_BYTES)
        except FileNotFoundError:
            return None

    def put_rollbacks(self, raw: bytes | None) -> None:
        """Upload them, if they are not what the store has.

        Raises:
            StoreError: The store fails.
        """
        if raw == self._put:
            return
        if raw is None:
            self._objects.delete([layout.ROLLBACKS])
        else:
            self._objects.put(layout.ROLLBACKS, raw)
        self._put = raw

    def put_events(self) -> None:
        """Upload what has happened so far.

        Raises:
            StoreError: The store fails.
        """
        for name in layout.events_names(self._directory):
            self._objects.send(self._directory / name, name)

    def get(self, names: dict[str, int]) -> None:
        """Make those of the local directory what they are in the store.

        Args:
            names: Of the objects there, with their sizes.

        Raises:
            StoreError: The store fails.
            OSError: The local file system does.
        """
        of_events = [name for name in names if layout.events_process(name) is not None]
        for name in {
            layout.ROLLBACKS,
            *of_events,
            *layout.events_names(self._directory),
        }:
            if name in names and names[name] <= files.EVENTS_BYTES:
                beside = self._directory / layout.unfinished_name(name)
                self._objects.receive(name, beside, names[name])
                os.replace(beside, self._directory / name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._directory / name)
        files.sync(self._directory)
