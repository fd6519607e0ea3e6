"""What is set in the environment, where a framework reads it once, when it starts.

What the user has set there stays: we add to it, or refuse.
"""

import os
from pathlib import Path

from resilient.errors import ResilientError

XLA_FLAGS = "XLA_FLAGS"
# No kernels that do not repeat, and none chosen by a race between them.
DETERMINISTIC = "--xla_gpu_deterministic_ops"


def xla_is_deterministic() -> bool:
    """Whether ``XLA_FLAGS`` asks for GPU kernels that repeat."""
    return _value() is True


def make_xla_deterministic() -> None:
    """Ask for them, in addition to what is there. XLA reads it when it starts."""
    check_xla()
    if not xla_is_deterministic():
        flags = os.environ.get(XLA_FLAGS, "")
        os.environ[XLA_FLAGS] = f"{flags} {DETERMINISTIC}=true".strip()


def check_xla() -> None:
    """Raise where ``XLA_FLAGS`` cannot be added to.

    Raises:
        ResilientError: It conflicts, or is the name of a file that does not
            say it.
    """
    flags, value = os.environ.get(XLA_FLAGS, ""), _value()
    if value is False:
        raise conflict(XLA_FLAGS, f"Remove {DETERMINISTIC} from it.")
    if value is None and _is_file(flags):
        raise conflict(XLA_FLAGS, f"Add {DETERMINISTIC}=true to that file.")


def _value() -> bool | None:
    """What the flag is set to; None where it is not there."""
    flags = os.environ.get(XLA_FLAGS, "")
    if _is_file(flags):
        path = Path(flags)
        flags = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = None
    for flag in flags.split():  # the last one wins
        name, _, value = flag.partition("=")
        if name == DETERMINISTIC:
            found = value.lower() in ("", "1", "true")
    return found


def _is_file(flags: str) -> bool:
    """XLA takes what does not begin like a flag for the name of a file of flags."""
    return bool(flags.strip()) and not flags.strip().startswith("-")


def processors() -> int:
    """How many processors this process may use: what frameworks size themselves by."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def positive(variable: str) -> int | None:
    """A positive number in an environment variable, if there is one."""
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def conflict(variable: str, todo: str) -> ResilientError:
    """The error for an environment that conflicts."""
    return ResilientError(
        "The environment conflicts with deterministic(), which replaces nothing there.",
        received=f"{variable}={os.environ.get(variable)}",
        hint=todo,
    )


def too_late(what: str, received: object) -> ResilientError:
    """The error for a call after a framework has read its settings."""
    return ResilientError(
        f"deterministic() comes too late: {what}.",
        received=received,
        hint="Call it at the top of the script, before anything is computed.",
    )
