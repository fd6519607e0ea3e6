"""Gathers what an attempt left: its events, the end of its stderr, the OOM kills."""

import contextlib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient.serialization import JSON
from resilient.telemetry.events import read_events
from resilient.telemetry.heartbeat import Beat

BACK = "rolled back to"  # event
_MACHINE = "proc/vmstat"
_START = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^ +File "(.*)", line (\d+, in .*)$', re.MULTILINE)
_END = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Evidence:
    """What one attempt left behind.

    Attributes:
        returncode: As from ``subprocess``: negative for a signal.
        events: What the attempt wrote to its event file.
        errors: The end of its stderr.
        oom_kills: How many processes the OOM killer killed meanwhile.
        hang: The hang for which we killed it, in words.
    """

    returncode: int
    events: Sequence[JSON] = ()
    errors: str = ""
    oom_kills: int = 0
    hang: str | None = None

    @property
    def failure(self) -> JSON:
        """The error that ended ``fit``, or else the process; empty if there is none."""
        last = self.last
        return last if last.get("event") == "failed" else last_traceback(self.errors)

    @property
    def stopped_short(self) -> bool:
        """Whether it trained, and not to the end."""
        return bool(self.events) and self.last.get("event") != "ended"

    @property
    def last(self) -> JSON:
        """The event that ended the attempt; empty if there is none."""
        names = ("failed", "preempted", "ended", BACK)
        return next((e for e in reversed(self.events) if e["event"] in names), {})


def events_of(beat: Beat | None, nproc: int) -> list[JSON]:
    """The events of the attempt with this last heartbeat.

    Args:
        beat: None if it never trained.
        nproc: How many processes have an event file.
    """
    if beat is None:
        return []
    return [
        event
        for process in range(nproc)
        for event in read_events(beat.directory, process, having=[beat.attempt])
        if event["attempt"] == beat.attempt
    ]


def last_traceback(text: str) -> JSON:
    """The last traceback in a text, as the fields of a "failed" event.

    Its "message" is the first line of the exception's text, its "rest" what follows;
    its "signature" is the same for the same exception from the same lines. Empty if
    there is no traceback.
    """
    _, start, after = text.rpartition(_START)
    end = _END.search(after) if start else None
    if end is None:
        return {}
    frames = _FRAME.findall(after[: end.start()])
    places = [f"{file}:{line.replace(', in', '')}" for file, line in frames]
    same = hashlib.sha256("\n".join([end[1], *places]).encode())
    return {
        "error": end[1],
        "message": end[2] or "",
        "rest": after[end.end() :],
        "where": places,
        "signature": same.hexdigest()[:16],
    }


def oom_kills(root: Path = Path("/")) -> int:
    """OOM kills so far in our control group, or on the machine; 0 if not counted.

    Such a process dies of SIGKILL like any other; only these counters say why. Of
    control groups, only version 2 is read.
    """
    own = _text(root / "proc/self/cgroup").partition("0::/")[2].split("\n")[0]
    group = "sys/fs/cgroup"
    for counts in (f"{group}/{own}/memory.events", f"{group}/memory.events", _MACHINE):
        if count := re.search(r"^oom_kill (\d+)$", _text(root / counts), re.MULTILINE):
            return int(count[1])
    return 0


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""
