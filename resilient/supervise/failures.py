"""Determines why a process ended, from what it left behind.

The evidence, best first: that we found it hanging; what ``fit`` wrote to
``events.jsonl``; the signal that killed it, and how many processes the kernel's OOM
killer killed meanwhile; the traceback at the end of its stderr; its exit status alone.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resilient.errors import (
    Interrupted,
    PeerLostError,
    Preempted,
    RolledBack,
    printable,
)
from resilient.serialization import JSON
from resilient.supervise.tracebacks import last_traceback

Kind = Literal[
    "finished",
    "killed",
    "out of memory",
    "diverged",
    "preempted",
    "interrupted",
    "rolled back",
    "stopped",
    "hung",
    "disk full",
    "not started",
    "error",
]

_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA out of memory|Cannot allocate memory|std::bad_alloc"
    r"|\bout of memory\b",
    re.IGNORECASE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT")
_MEMORY_ERRORS = ("MemoryError", "ResourceExhaustedError", "OutOfMemoryError")
_NOT_STARTED = {126: "cannot be executed", 127: "was not found"}
# Signals that a process raises itself; others come from outside.
_OWN_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
_OWN = {int(signum) for signum in (*_OWN_SIGNALS, signal.SIGFPE, signal.SIGTRAP)}
_END_OF_ERRORS = 4096
_BACK = "its loss was bad, and it continues from an earlier checkpoint"


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


@dataclass(frozen=True)
class Ending:
    """Why an attempt ended.

    Attributes:
        kind: What happened.
        why: The same in words, on one line, without a full stop.
        status: Exit status as a shell reports it.
        signature: Equal for the same bug; None if it is not a bug.
        step: Where it happened, if known exactly.
        final: Whether a restart would be pointless, or against the user's wish.
        traced: Whether its output has a traceback.
    """

    kind: Kind
    why: str
    status: int
    signature: str | None = None
    step: int | None = None
    final: bool = False
    traced: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", printable(self.why))


def exit_status(returncode: int) -> int:
    """The exit status that a shell would report."""
    return 128 - returncode if returncode < 0 else returncode


def classify(evidence: Evidence) -> Ending:
    """Say why an attempt ended."""
    status = exit_status(evidence.returncode)
    if evidence.hang is not None:
        return Ending("hung", evidence.hang, status)
    if status == 0:
        status = _swallowed_status(evidence.events)
    if status == 0:
        return Ending("finished", "it ended with exit status 0", status, final=True)
    if status in _NOT_STARTED:
        why = f"the command, or one that it runs, {_NOT_STARTED[status]}"
        return Ending(
            "not started", f"{why} (exit status {status})", status, final=True
        )
    kinds = [event.get("event") for event in evidence.events]
    if status == RolledBack.status and "rolled back to" in kinds:
        return Ending("rolled back", _BACK, status)
    last = _last_event(evidence.events)
    signum = status - 128 if status - 128 in signal.valid_signals() else None
    if last.get("event") == "preempted" and signum is not None:
        return _preempted(str(last.get("reason")), status)
    if signum is None or signum in _OWN:
        if last.get("event") == "diverged":
            why = f"it diverged at step {last.get('step')}: {last.get('why')}"
            return Ending("diverged", why, status, "diverged", last.get("step"))
        if last.get("event") == "failed":
            return _from_failure(last, status)
    if signum is not None:
        return _from_signal(signum, evidence, status)
    if failure := last_traceback(evidence.errors):
        return _from_failure(failure, status)
    why = f"it ended with exit status {status} and no traceback"
    kind = _kind_of("", evidence.errors[-_END_OF_ERRORS:])
    return Ending(kind, why, status, f"exit status {status}")


def failed_by_itself(evidence: Evidence) -> bool:
    """Whether it ended with an error in fit that no other process caused."""
    last = _last_event(evidence.events)
    kind = last.get("event")
    return kind == "diverged" or (kind == "failed" and not _is_loss(last))


def was_caused_by_peer_loss(evidence: Evidence) -> bool:
    """Whether it ended because another process was lost."""
    last = _last_event(evidence.events)
    failed = last.get("event") == "failed"
    return _is_loss(last if failed else last_traceback(evidence.errors))


def _is_loss(failure: JSON) -> bool:
    return _class_name(failure) == PeerLostError.__name__


def _class_name(failure: JSON) -> str:
    return str(failure.get("error")).rpartition(".")[2]


def _swallowed_status(events: Sequence[JSON]) -> int:
    """The exit status of a fit that was stopped or rolled back, if it was the last.

    A shell script that continues afterwards exits with 0, and so does a script that
    catches the exception.
    """
    last = events[-1] if events else {}
    if last.get("event") == "preempted":
        cls = Interrupted if last.get("reason") == "SIGINT" else Preempted
        return int(cls.status)
    return int(RolledBack.status) if last.get("event") == "rolled back to" else 0


def _last_event(events: Sequence[JSON]) -> JSON:
    """The event that ended the attempt; empty if there is none."""
    for event in reversed(events):
        if event.get("event") in ("failed", "preempted", "ended"):
            return event
        if event.get("event") == "diverged" and event.get("action") == "stop":
            return event
    return {}


def _preempted(reason: str, status: int) -> Ending:
    if reason == "stop file":
        return Ending("stopped", "it was stopped by the stop file", status, final=True)
    if reason == "SIGINT":
        return Ending("interrupted", "it was interrupted", status, final=True)
    if reason.startswith("SIG"):
        return Ending("preempted", f"it was preempted by {reason}", status)
    return Ending(
        "preempted", f"this machine is going away: {reason}", status, final=True
    )


def _from_failure(failure: JSON, status: int) -> Ending:
    """From a "failed" event, or from a traceback, which has no step."""
    message, step = str(failure.get("message")), failure.get("step")
    kind = _kind_of(_class_name(failure), message)
    # The first line is enough: the whole traceback is in the output.
    first = (message.splitlines() or [""])[0]
    at = "" if step is None else f" at step {step}"
    why = f"{_class_name(failure)}{at}: {first}"
    if where := failure.get("where"):
        why += f" ({where[-1]})"
    signature = None if kind == "disk full" else str(failure.get("signature"))
    return Ending(kind, why, status, signature, step, traced=True)


def _from_signal(signum: int, evidence: Evidence, status: int) -> Ending:
    name = _signal_name(signum)
    if signum == signal.SIGKILL and evidence.oom_kills > 0:
        why = "the kernel killed it because memory ran out (SIGKILL)"
        return Ending("out of memory", why, status, "SIGKILL for lack of memory")
    if signum == signal.SIGTERM:
        return Ending("preempted", "it was terminated by SIGTERM", status)
    if signum == signal.SIGINT:
        return Ending("interrupted", "it was interrupted", status, final=True)
    if signum in _OWN:
        if _MEMORY.search(evidence.errors[-_END_OF_ERRORS:]):
            why = f"it ran out of memory and died with {name}"
            return Ending("out of memory", why, status, name)
        return Ending("killed", f"it crashed with {name}", status, name)
    return Ending("killed", f"it was killed by {name}", status)


def _kind_of(name: str, message: str) -> Kind:
    if _DISK.search(message):  # before memory: TensorFlow has one class for both
        return "disk full"
    if name in _MEMORY_ERRORS or _MEMORY.search(message):
        return "out of memory"
    return "diverged" if name == "DivergedError" else "error"


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
