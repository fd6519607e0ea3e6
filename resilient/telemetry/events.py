"""Records what happened to a run: one JSON object per line in ``events.jsonl``.

Events are for people and for tools that observe a run: training neither depends on them
nor stops because of them. A file that cannot be written is reported once in the log. An
error in the caller's ``on_event`` is raised.

A file may have millions of lines. It is read from either end, block by block, and a
block without any of the wanted texts is passed over whole. Of a line that is too long
to be ours, only the beginning is held.

``last_attempt`` finds how the previous attempt ended, by its last event and its last
sign of life.
"""

import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any

from resilient.errors import printable
from resilient.serialization import JSON
from resilient.serialization.redaction import redacted
from resilient.serialization.schema import SchemaError, from_json, parse, strict
from resilient.storage.files import EVENTS_BYTES, open_file
from resilient.storage.layout import HEARTBEAT, events_name
from resilient.telemetry import heartbeat
from resilient.telemetry.event import Event

logger = logging.getLogger(__name__)

_BEGIN = b'{"time": '  # starts every line that we write

_told: set[Path] = set()  # files already reported as damaged

# Far above real use: anything longer is not ours.
LONGEST = 1 << 20

_LAST_WORDS = {
    "ended": "ended",
    "preempted": "was asked to stop",
    "failed": "failed",
    "diverged": "diverged",
}
_TEXT = 100  # characters of an error's name that are shown


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
        self._warned = False
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
                self._append(_line(entry))
        except OSError as error:
            if not self._warned:
                logger.warning("Events are no longer recorded: %s", error)
            self._warned = True
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
            size = os.fstat(descriptor).st_size
            # A process that died while writing a line left it unfinished.
            if size:
                os.lseek(descriptor, -1, os.SEEK_END)
                line = (b"" if os.read(descriptor, 1) == b"\n" else b"\n") + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def read_events(
    directory: str | os.PathLike[str],
    process: int = 0,
    *,
    having: Collection[str] = (),
    all_of_them: bool = False,
    newest_first: bool = False,
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
        newest_first: Begin at the end of the file, whose beginning is then not read if
            the caller stops early.

    Raises:
        OSError: The file cannot be read, and ``all_of_them`` is set.
    """
    for found, _ in _read(directory, process, having, all_of_them, newest_first):
        yield found


def read_by_schema(directory: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of process 0 without their further fields, oldest first."""
    return (event for _, event in _read(directory) if event is not None)


def _read(
    directory: str | os.PathLike[str],
    process: int = 0,
    having: Collection[str] = (),
    all_of_them: bool = False,
    newest_first: bool = False,
) -> Iterator[tuple[JSON, Event | None]]:
    """As ``read_events``, each also by its schema; None: "unknown"."""
    path = Path(directory) / events_name(process)
    texts = [text.encode(errors="replace") for text in having]
    try:
        with open(open_file(path.parent, path.name), "rb") as file:
            if os.fstat(file.fileno()).st_size > EVENTS_BYTES:
                raise OSError(
                    errno.EFBIG, f"larger than {EVENTS_BYTES:,} bytes", path.name
                )
            found: Iterator[tuple[int | None, bytes]] = forwards(file, texts)
            if newest_first:
                found = ((None, line) for line in backwards(file, texts))
            for number, line in found:
                try:
                    event = _event(line)
                except SchemaError as error:
                    if all_of_them and not line.startswith(
                        _BEGIN[: len(line.rstrip())]
                    ):
                        yield {"event": "unknown"}, None
                    which = "A line" if number is None else f"Line {number:,}"
                    what = f"{which} of {path} is not an event, and is left out"
                    _warn_once(path, f"{what} as others like it are: {error}")
                else:
                    yield event
    except FileNotFoundError:
        return
    except OSError as error:
        if all_of_them:
            raise
        _warn_once(path, f"Earlier events in {path.parent} cannot be read: {error}")


def _event(line: bytes) -> tuple[JSON, Event]:
    if len(line) > LONGEST:
        raise SchemaError(f"longer than {LONGEST:,} bytes")
    found = parse(line)
    return found, from_json(Event, found)


def _warn_once(path: Path, text: str) -> None:
    if path not in _told:
        _told.add(path)
        logger.warning("%s", printable(text))


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


def attempts_so_far(
    directory: os.PathLike[str], process: int = 0
) -> list[dict[str, Any]]:
    """Host, pid and start (Unix seconds) of a process's attempts at this run so far."""
    attempts: list[dict[str, Any]] = []
    for event in read_events(directory, process, having=['"started']):
        if event["event"] == "started":
            attempts.append(
                {"host": event["host"], "pid": event["pid"], "started": event["time"]}
            )
        elif event["event"] == "started over":
            attempts = attempts[-1:]  # earlier ones belong to an abandoned run
    return attempts


def forwards(
    file: IO[bytes], having: Sequence[bytes] = ()
) -> Iterator[tuple[int, bytes]]:
    """Lines by number, from 1; an overlong one is cut, but stays overlong.

    Args:
        file: Open for reading, at its beginning.
        having: Texts, one of which a line must contain; none: every line.
    """
    before = 0  # lines
    while block := file.read(LONGEST):
        block += file.readline(LONGEST + 1)
        rest = block
        while rest and not rest.endswith(b"\n"):  # the end of the file, or overlong
            rest = file.readline(LONGEST + 1)
        if _has(block, having):
            for number, line in enumerate(_split(block), before + 1):
                if _has(line, having):
                    yield number, line
        before += block.count(b"\n") + (not block.endswith(b"\n"))


def backwards(file: IO[bytes], having: Sequence[bytes]) -> Iterator[bytes]:
    """The same from the last line to the first, without numbers."""
    end, begun = file.seek(0, os.SEEK_END), b""  # begun: of a line, found so far
    while end:
        end -= (size := min(LONGEST, end))
        file.seek(end)
        block = file.read(size)
        first = block.find(b"\n") + 1 if end else 0
        if end and not first:
            begun = (block + begun)[: LONGEST + 1]
            continue
        whole = block[first:] + begun
        if _has(whole, having):
            yield from (line for line in reversed(_split(whole)) if _has(line, having))
        begun = block[:first]


def _split(block: bytes) -> list[bytes]:
    *lines, last = block.split(b"\n")
    lines = [line + b"\n" for line in lines] + ([last] if last else [])
    return [line[: LONGEST + 1] for line in lines]


def _has(block: bytes, texts: Sequence[bytes]) -> bool:
    return not texts or any(text in block for text in texts)


@dataclass(frozen=True)
class LastAttempt:
    """The previous attempt.

    Attributes:
        how: How it ended.
        time: When it gave its last sign or event, in Unix seconds.
        step: Where training was; None if unknown.
        certain: Whether it reported this itself, and so did nothing afterwards.
    """

    how: str
    time: float
    step: int | None
    certain: bool


def last_attempt(directory: Path) -> LastAttempt | None:
    """The last recorded attempt; None if there is none.

    Call it before this attempt records anything.
    """
    last: dict[str, Any] | None = None
    started: dict[str, Any] | None = None
    words = [f'"{event}"' for event in ("started", *_LAST_WORDS)]
    for event in read_events(directory, having=words, newest_first=True):
        if event["event"] == "started":
            started = event
            break
        if event["event"] == "diverged" and event.get("action") == "rollback":
            continue
        if last is None and event["event"] in _LAST_WORDS:
            last = event
    if started is None:
        return None
    sign = heartbeat.read(directory / HEARTBEAT)
    if sign is not None and sign.attempt != started["attempt"]:
        sign = None
    step = None if sign is None else sign.step
    if last is None:
        when = started["time"] if sign is None else max(started["time"], sign.time)
        return LastAttempt("was killed or died", when, step, certain=False)
    how = _LAST_WORDS[last["event"]]
    if error := last.get("error"):
        name = error.rpartition(".")[2]
        how += f" ({printable(name[:_TEXT])})"
    at = last.get("step")
    return LastAttempt(how, last["time"], step if at is None else at, certain=True)
