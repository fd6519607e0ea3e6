"""The files beside the checkpoints that a run on another machine needs as well."""

import contextlib
import os
from pathlib import Path

from resilient.storage import files, layout
from resilient.storage.remote.objects import Objects


class SideFiles:
    """``rollbacks.json`` and the events of all processes, near and far.

    Args:
        objects: The store.
        directory: The local directory.
    """

    def __init__(self, objects: Objects, directory: Path) -> None:
        self._objects, self._directory = objects, directory
        self._rollbacks: bytes | None = None

    def put_rollbacks(self) -> None:
        """Upload which batches the run skips, if that has changed.

        Raises:
            StoreError: The store fails.
        """
        try:
            raw = files.read_file(self._directory, layout.ROLLBACKS, files.JSON_BYTES)
        except FileNotFoundError:
            if self._rollbacks is not None:
                self._objects.delete([layout.ROLLBACKS])
                self._rollbacks = None
            return
        if raw != self._rollbacks:
            self._objects.put(layout.ROLLBACKS, raw)
            self._rollbacks = raw

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
        of_events = [name for name in names if layout.is_events_name(name)]
        for name in {
            layout.ROLLBACKS,
            *of_events,
            *layout.events_names(self._directory),
        }:
            if name in names and names[name] <= files.EVENTS_BYTES:
                beside = self._directory / layout.unfinished_name(name)
                self._objects.receive(name, beside)
                os.replace(beside, self._directory / name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._directory / name)
        files.sync(self._directory)
