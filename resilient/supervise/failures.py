"""Why a process ended, from all that it left behind.

The evidence, the best first: that we found it hanging; what ``fit`` wrote to
``events.jsonl``; the signal that killed it and the kernel's count of kills for want of
memory; the traceback at the end of its errors; its exit status alone.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from resilient.errors import Interrupted, PeerLostError, Preempted, RolledBack
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
# What a process does to itself; other signals come from outside.
_OWN_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
_OWN = {int(signum) for signum in (*_OWN_SIGNALS, signal.SIGFPE, signal.SIGTRAP)}
_END_OF_ERRORS = 4096
_BACK = "its loss was bad, and it goes on from an earlier checkpoint"


@dataclass(frozen=True)
class Evidence:
    """What one attempt left behind.

    Attributes:
        returncode: As ``subprocess`` gives it: negative for a signal.
        events: What the attempt wrote to its file of events.
        errors: The end of its stderr.
        oom_kills: Kills for want of memory meanwhile, of any process.
        hang: The hang that we ended it for, in words.
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
        kind: What it was.
        why: The same for people, to be read after a colon.
        status: Exit status, as a shell has it.
        signature: Equal for the same bug; None for what is nobody's bug.
        step: Where, if it is known exactly.
        final: A restart would be pointless, or against what was asked for.
    """

    kind: Kind
    why: str
    status: int
    signature: str | None = None
    step: int | None = None
    final: bool = False


def exit_status(returncode: int) -> int:
    """The exit status of a shell whose last process ended so."""
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
        why = f"the command, or one that it starts, {_NOT_STARTED[status]}"
        return Ending(
            "not started", f"{why} (exit status {status})", status, final=True
        )
    events = [event.get("event") for event in evidence.events]
    if status == RolledBack.status and "rolled back to" in events:
        return Ending("rolled back", _BACK, status)
    last = _last_event(evidence.events)
    signum = status - 128 if status - 128 in signal.valid_signals() else None
    if last.get("event") == "preempted" and signum is not None:
        return _preempted(str(last.get("reason")), status)
    by_itself = signum is None or signum in _OWN
    if last.get("event") in ("failed", "diverged") and by_itself:
        return _from_event(last, status)
    if signum is not None:
        return _from_signal(signum, evidence, status)
    return _from_errors(evidence.errors, status)


def failed_by_itself(evidence: Evidence) -> bool:
    """Whether an error in fit ended it that no other process brought about."""
    last = _last_event(evidence.events)
    kind = last.get("event")
    return kind == "diverged" or (kind == "failed" and not _is_loss(last.get("error")))


def lost_another(evidence: Evidence) -> bool:
    """Whether it ended for want of another process."""
    last = _last_event(evidence.events)
    if last.get("event") == "failed":
        return _is_loss(last.get("error"))
    found = last_traceback(evidence.errors)
    return found is not None and _is_loss(found.error)


def _is_loss(error: Any) -> bool:
    return str(error).rpartition(".")[2] == PeerLostError.__name__


def _swallowed_status(events: Sequence[JSON]) -> int:
    """What a training ended with that was stopped or set back, if nothing came after.

    A shell script that goes on after it ends with 0, and so does one that catches it.
    """
    last = events[-1] if events else {}
    if last.get("event") == "preempted":
        cls = Interrupted if last.get("reason") == "SIGINT" else Preempted
        return int(cls.status)
    return int(RolledBack.status) if last.get("event") == "rolled back to" else 0


def _last_event(events: Sequence[JSON]) -> JSON:
    """The event that ended the attempt; empty if none did."""
    for event in reversed(events):
        if event.get("event") in ("failed", "preempted", "ended"):
            return event
        if event.get("event") == "diverged" and event.get("action") == "stop":
            return event
    return {}


def _preempted(reason: str, status: int) -> Ending:
    if reason == "stop file":
        return Ending("stopped", "it was stopped by its stop file", status, final=True)
    if reason == "SIGINT":
        return Ending("interrupted", "it was interrupted", status, final=True)
    if reason.startswith("SIG"):
        return Ending("preempted", f"it was preempted by {reason}", status)
    return Ending("preempted", f"this machine goes away: {reason}", status, final=True)


def _from_event(event: JSON, status: int) -> Ending:
    step = event.get("step")
    if event["event"] == "diverged":
        why = f"it diverged at step {step}: {event.get('why')}"
        return Ending("diverged", why, status, "diverged", step)
    error, message = str(event.get("error")), str(event.get("message"))
    kind = _kind_of(error, message)
    # The class alone, and the first line: the whole traceback is in the output.
    first = (message.splitlines() or [""])[0]
    why = f"{error.rpartition('.')[2]} at step {step}: {first}"
    if event.get("where"):
        where = event["where"]
        why += f" ({where if isinstance(where, str) else where[-1]})"
    signature = None if kind == "disk full" else str(event.get("signature"))
    return Ending(kind, why, status, signature, step)


def _from_signal(signum: int, evidence: Evidence, status: int) -> Ending:
    name = _signal_name(signum)
    if signum == signal.SIGKILL and evidence.oom_kills > 0:
        why = "the kernel killed it for want of memory (SIGKILL)"
        return Ending("out of memory", why, status, "SIGKILL for want of memory")
    if signum == signal.SIGTERM:
        return Ending("preempted", "it was ended by SIGTERM", status)
    if signum == signal.SIGINT:
        return Ending("interrupted", "it was interrupted", status, final=True)
    if signum in _OWN:
        if _MEMORY.search(evidence.errors[-_END_OF_ERRORS:]):
            why = f"it ran out of memory and died of {name}"
            return Ending("out of memory", why, status, name)
        return Ending("killed", f"it crashed with {name}", status, name)
    return Ending("killed", f"it was killed by {name}", status)


def _from_errors(errors: str, status: int) -> Ending:
    found = last_traceback(errors)
    if found is None:
        kind = _kind_of("", errors[-_END_OF_ERRORS:])
        why = f"it ended with exit status {status} and no traceback"
        return Ending(kind, why, status, f"exit status {status}")
    kind = _kind_of(found.error, found.message)
    name = found.error.rpartition(".")[2]
    why = f"{name}: {found.message} ({found.where})"
    signature = None if kind == "disk full" else found.signature
    return Ending(kind, why, status, signature)


def _kind_of(error: str, message: str) -> Kind:
    name = error.rpartition(".")[2]
    if _DISK.search(message):  # TensorFlow has one error for a full disk and memory
        return "disk full"
    if name in _MEMORY_ERRORS or _MEMORY.search(message):
        return "out of memory"
    return "diverged" if name == "DivergedError" else "error"


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
