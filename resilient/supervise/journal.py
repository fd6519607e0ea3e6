"""Writes the supervisor's own events to the run's ``events.jsonl``.

The first heartbeat names the directory; events wait here until then. If training has
not created its directory yet, neither does the supervisor.
"""

import time
import uuid
from pathlib import Path
from typing import Any

from resilient.telemetry.events import Events


class Journal:
    """Appends events to the directory of the run, once it is known.

    Attributes:
        directory: The checkpoint directory; None while it is not known.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._name = uuid.uuid4().hex[:12]
        self._events: Events | None = None
        self._waiting: list[tuple[str, dict[str, Any]]] = []

    def settle(self, directory: Path) -> None:
        """Use this directory from now on."""
        if self.directory != directory:
            self.directory, self._events = directory, None
        self._flush()

    def emit(self, event: str, **fields: Any) -> None:
        """Append an event, or keep it until the directory exists."""
        self._waiting.append((event, {"time": time.time(), **fields}))
        self._flush()

    def _flush(self) -> None:
        if not self._waiting or self.directory is None or not self.directory.is_dir():
            return
        if self._events is None:
            self._events = Events(self.directory)
            self._events.attempt = self._name
        for event, fields in self._waiting:
            self._events.emit(event, **fields)
        self._waiting.clear()
