"""Determines why a process ended, and whether a restart can help.

The evidence, best first: that we found it hanging; what ``fit`` wrote to
``events.jsonl``; the signal that killed it, and how many processes the kernel's OOM
killer killed meanwhile; the traceback at the end of its stderr; its exit status alone.
"""

import signal
from dataclasses import dataclass

from resilient import errors
from resilient.serialization import JSON
from resilient.supervise.evidence import BACK, Evidence
from resilient.telemetry.events import KILLED

# Errors of ours that every restart would meet again.
_REFUSALS = (
    errors.BackendNotAvailableError,
    errors.CheckpointMismatchError,
    errors.DataNotResumableError,
    errors.NotExactError,
    errors.NotSupportedError,
    errors.UntrustedCheckpointError,
)
# Signals that a process raises itself; others come from outside.
_CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP")
_OWN = {getattr(signal, name) for name in _CRASHES if hasattr(signal, name)}


@dataclass(frozen=True)
class Ending:
    """Why an attempt ended.

    Attributes:
        kind: What happened, in a word or two: "finished", "killed or lost", "out of
            memory", "diverged", "preempted", "interrupted", "rolled back", "stopped",
            "hung", "not started" or "error".
        why: The same in words, on one line, without a full stop.
        status: Exit status as a shell reports it.
        signature: Equal for the same bug; None if it is not a bug.
        step: Where it happened, if known exactly.
        final: Whether a restart would be pointless, or against the user's wish.
    """

    kind: str
    why: str
    status: int
    signature: str | None = None
    step: int | None = None
    final: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", errors.printable(self.why))


def classify(found: Evidence) -> Ending:
    """Say why an attempt ended."""
    code, last = found.returncode, found.last
    status = 128 - code if code < 0 else code  # as a shell reports it
    if found.hang is not None:
        return Ending("hung", found.hang, status)
    signum = status - 128 if status - 128 in set(signal.Signals) else None
    # A shell script that goes on ends with 0, as one does that catches the exception.
    if last.get("event") == "preempted" and (signum is not None or status == 0):
        return _stopped(str(last.get("reason")), status)
    if last.get("event") == BACK and status in (0, errors.RolledBack.status):
        why = "its loss was bad, and it continues from an earlier checkpoint"
        return Ending("rolled back", why, errors.RolledBack.status)
    if status == 0:
        return Ending("finished", "it ended with exit status 0", 0, final=True)
    # A process that failed may crash as it exits.
    explains = signum is None or (signum in _OWN and last.get("event") == "failed")
    if explains and found.failure:
        return _from_failure(found.failure, status)
    if signum is not None:
        return _from_signal(signum, found, status)
    why = f"it ended with exit status {status} and no traceback"
    return Ending("error", why, status, f"exit status {status}")


def lost_a_peer(found: Evidence) -> bool:
    """Whether it ended because another process was lost."""
    return _class_name(found.failure) == errors.PeerLostError.__name__


def _stopped(reason: str, status: int) -> Ending:
    """From who asked it to stop; a cloud's notice says why the machine goes away."""
    kinds = {"SIGINT": "interrupted", "stop file": "stopped"}
    status = status or (130 if reason == "SIGINT" else 143)
    final = reason in kinds or not reason.startswith("SIG")
    why = f"it was asked to stop ({reason})"
    return Ending(kinds.get(reason, "preempted"), why, status, final=final)


def _from_failure(failure: JSON, status: int) -> Ending:
    """From a "failed" event, or from a traceback, which has no step."""
    name, step = _class_name(failure), failure.get("step")
    # The first line is enough: the whole traceback is in the output.
    first = str(failure.get("message")).partition("\n")[0]
    why = f"{name}{'' if step is None else f' at step {step}'}: {first}"
    if where := failure.get("where"):
        why += f" ({where[-1]})"
    kind = "diverged" if name == errors.DivergedError.__name__ else "error"
    final, signature = _refuses(name, failure), str(failure.get("signature"))
    return Ending(kind, why, status, signature, step, final)


def _refuses(name: str, failure: JSON) -> bool:
    """Whether it is an error of ours that no restart cures."""
    refused = "\nReceived: " in failure.get("rest", "")
    known = [cls.__name__ for cls in _REFUSALS]
    return name in known or (refused and name in ("TypeError", "ValueError"))


def _from_signal(signum: int, found: Evidence, status: int) -> Ending:
    name = signal.Signals(signum).name
    if signum == signal.SIGKILL and found.oom_kills > 0:
        why = "the kernel killed it because memory ran out (SIGKILL)"
        return Ending("out of memory", why, status, "SIGKILL for lack of memory")
    if signum in (signal.SIGTERM, signal.SIGINT):
        return _stopped(name, status)
    if name == "SIGPIPE":
        why = "the reader of its output closed it (SIGPIPE)"
        return Ending("stopped", why, status, final=True)
    if signum in _OWN:
        return Ending(KILLED, f"it crashed with {name}", status, name)
    return Ending(KILLED, f"it was killed by {name}", status)


def _class_name(failure: JSON) -> str:
    return str(failure.get("error")).rpartition(".")[2]
