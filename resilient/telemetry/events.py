"""Records what happened to a run: one JSON object per line in ``events.jsonl``.

Events are for people and for tools that observe a run: training neither depends on them
nor stops because of them. A file that cannot be written is reported once in the log. An
error in the caller's ``on_event`` is raised.

``Event`` is the schema of a line, and ``read_events`` the only reader.
"""

import errno
import json
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from resilient.serialization import JSON
from resilient.serialization.redaction import redacted
from resilient.serialization.schema import (
    Count,
    NotFinite,
    SchemaError,
    from_json,
    parse,
    strict,
)
from resilient.storage.files import EVENTS_BYTES, open_file, say_once
from resilient.storage.layout import events_name
from resilient.telemetry.heartbeat import Beat, ProcessId, Seconds

_BEGIN = b'{"time": '  # starts every line that we write

_LONGEST = 1 << 20  # bytes; far above real use: anything longer is not ours

# What an attempt is called everywhere that reported no end.
KILLED = "killed or lost"


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of the file; other fields are for people, and may hold anything.

    Attributes:
        time: When it happened, in Unix seconds.
        event: What happened.
        attempt: Identifies the attempt of one process.
        host: Where it ran.
        pid: Its process id there.
        previous: The last heartbeat of the previous attempt (in "started").
        epoch: The number of epochs completed.
        batch: Batches completed in the next epoch.
        logs: Metrics by name (in "metrics": for the epoch that ended, or so far).
        repeated: Batches that were trained again with the same bits (in "repeated" and
            "not repeated").
        kind: How a process ended, in a word (in a supervisor's "exited").
    """

    time: Seconds
    event: str
    attempt: str
    host: str
    pid: ProcessId
    step: Count | None = None
    from_step: Count | None = None
    epoch: Count | None = None
    batch: Count | None = None
    seconds: Seconds = 0.0
    stall: Seconds = 0.0
    postponed: bool = False
    action: str | None = None
    why: str | None = None
    reason: str | None = None
    error: str | None = None
    message: str | None = None
    where: list[str] = field(default_factory=list)
    previous: Beat | None = None
    logs: dict[str, float | NotFinite] = field(default_factory=dict)
    nbytes: Count | None = None
    kind: str | None = None
    repeated: Count | None = None

    @property
    def ends_attempt(self) -> bool:
        """Whether it ends its attempt."""
        if self.event == "diverged":
            return self.action != "rollback"
        return self.event in ("ended", "preempted", "failed")


class Events:
    """Appends the events of one attempt, from any thread.

    ``on_event`` is called only on the thread that created this object.

    Attributes:
        attempt: Identifies this attempt among all in the directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        on_event: Callable[[dict[str, Any]], None] | None = None,
        process: int = 0,
    ) -> None:
        self.attempt = uuid.uuid4().hex[:12]
        self._directory, self._name = Path(directory), events_name(process)
        self._on_event = on_event
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._undelivered: deque[dict[str, Any]] = deque()

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event and pass it to ``on_event``.

        Args:
            event: What happened: "saved", "restored", "fell back", ...
            fields: Its details; values that JSON cannot hold are written as text.
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
                self._append(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            say_once(f"Events are no longer recorded: {error}", of=self.attempt)
        self._undelivered.append(entry)
        if threading.get_ident() == self._thread:
            self.deliver()

    def deliver(self) -> None:
        """Pass events emitted by other threads to ``on_event``."""
        while self._undelivered:
            entry = self._undelivered.popleft()
            if self._on_event is not None:
                self._on_event(entry)

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        descriptor = open_file(self._directory, self._name, flags)
        try:
            # A process that died while writing a line left it unfinished.
            if os.fstat(descriptor).st_size:
                os.lseek(descriptor, -1, os.SEEK_END)
                line = (b"" if os.read(descriptor, 1) == b"\n" else b"\n") + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read_events(
    directory: str | os.PathLike[str],
    process: int = 0,
    *,
    having: Collection[str] = (),
    all_of_them: bool = False,
) -> Iterator[JSON]:
    """Yield the events of a process, oldest first.

    They match the schema ``Event``, and may have further fields. A line that is not an
    event, such as one torn by a kill, is skipped, which the log says once.

    Args:
        directory: The checkpoint directory.
        process: Its number.
        having: Parse only lines that contain one of these texts, which is much faster.
        all_of_them: Raise if the file cannot be read, instead of logging it; and yield
            an event "unknown" for a line that was never ours, not even torn.

    Raises:
        OSError: The file cannot be read, and ``all_of_them`` is set.
    """
    path = Path(directory) / events_name(process)
    texts = (re.escape(text.encode(errors="replace")) for text in having)
    wanted = re.compile(b"|".join(texts)).search
    try:
        with open(open_file(path.parent, path.name), "rb") as file:
            if os.fstat(file.fileno()).st_size > EVENTS_BYTES:
                raise OSError(
                    errno.EFBIG, f"larger than {EVENTS_BYTES:,} bytes", path.name
                )
            lines = iter(partial(file.readline, _LONGEST + 1), b"")
            for number, line in enumerate(lines, 1):
                if not wanted(line):
                    continue
                try:
                    yield _event(line)
                except SchemaError as error:
                    if all_of_them and not line.startswith(
                        _BEGIN[: len(line.rstrip())]
                    ):
                        yield {"event": "unknown"}
                    what = f"Line {number:,} of {path} is not an event, and is left out"
                    say_once(f"{what} as others like it are: {error}", of=path)
    except FileNotFoundError:
        return
    except OSError as error:
        if all_of_them:
            raise
        say_once(f"Earlier events in {path.parent} cannot be read: {error}", of=path)


def _event(line: bytes) -> JSON:
    if len(line) > _LONGEST:
        raise SchemaError(f"longer than {_LONGEST:,} bytes")
    found: JSON = parse(line)
    from_json(Event, found)
    return found


def _plain(value: Any) -> Any:
    """A value that strict JSON can hold, without anything that looks like a secret."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # a lone surrogate becomes its escape
        return redacted(value).encode(errors="backslashreplace").decode()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return strict(float(value))
    if isinstance(value, Mapping):
        return {_plain(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(str(value))
