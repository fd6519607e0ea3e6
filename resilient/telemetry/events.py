"""What happened to a run, one JSON object a line in ``events.jsonl``.

Events are for people and for tools that observe a run: training never depends on them
and is never stopped by them. A file that cannot be written is reported once in the log.
An error in the caller's ``on_event`` is raised.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from resilient.serialization import strict
from resilient.storage.layout import events_name

logger = logging.getLogger(__name__)


class Events:
    """Appends the events of one attempt, from any thread.

    ``on_event`` is only called on the thread that made this object.

    Attributes:
        attempt: Identifies this process life among all on the directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        on_event: Callable[[dict[str, Any]], None] | None = None,
        process: int = 0,
    ) -> None:
        self.attempt = uuid.uuid4().hex[:12]
        self._path = Path(directory) / events_name(process)
        self._on_event = on_event
        self._warned = False
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._undelivered: deque[dict[str, Any]] = deque()

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event and pass it to ``on_event``.

        Args:
            event: What happened: "saved", "restored", "fell back", ...
            fields: Whatever belongs to it; what JSON cannot hold is written as text.
        """
        entry = {
            "time": time.time(),
            "event": event,
            "attempt": self.attempt,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **{name: _plain(value) for name, value in fields.items()},
        }
        try:
            with self._lock:
                self._append(_line(entry))
        except OSError as error:
            if not self._warned:
                logger.warning("Events are not recorded any more: %s", error)
            self._warned = True
        self._undelivered.append(entry)
        if threading.get_ident() == self._thread:
            self.deliver()

    def deliver(self) -> None:
        """Pass what other threads emitted to ``on_event``."""
        while self._undelivered:
            entry = self._undelivered.popleft()
            if self._on_event is not None:
                self._on_event(entry)

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            # A process that died while it wrote a line left it without an end.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _line(entry: Mapping[str, Any]) -> bytes:
    """JSON; half a surrogate pair, which UTF-8 cannot hold, becomes its escape."""
    text = json.dumps(entry, ensure_ascii=False)
    return text.encode(errors="backslashreplace") + b"\n"


def read_events(
    directory: str | os.PathLike[str], process: int = 0
) -> list[dict[str, Any]]:
    """All events of a process, oldest first; lines torn by a kill are left out."""
    try:
        lines = (Path(directory) / events_name(process)).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("Earlier events cannot be read: %s", error)
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _plain(value: Any) -> Any:
    """A value that strict JSON can hold."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return strict(float(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def attempts_so_far(
    directory: os.PathLike[str], process: int = 0
) -> list[dict[str, Any]]:
    """Host, pid and start (Unix seconds) of a process's attempts on this run so far."""
    attempts: list[dict[str, Any]] = []
    for event in read_events(directory, process):
        if event.get("event") == "started":
            attempts.append(
                {"host": event["host"], "pid": event["pid"], "started": event["time"]}
            )
        elif event.get("event") == "started over":
            attempts = attempts[-1:]  # the others belong to an abandoned run
    return attempts
