"""Reads and sets frameworks' environment variables, and words errors about them."""

import os
import re

from resilient.errors import ResilientError

XLA_FLAGS = "XLA_FLAGS"
# No nondeterministic kernels, and none chosen by racing them. (TensorFlow's op
# determinism does not rule out the latter in all releases.)
_DETERMINISTIC = "--xla_gpu_deterministic_ops"


def xla_flags() -> str:
    """XLA's flags, which it reads when it starts."""
    return os.environ.get(XLA_FLAGS, "").strip()


def deterministic_xla_flags() -> str:
    """The same with deterministic GPU kernels.

    Raises:
        ResilientError: They conflict. XLA takes anything that does not look like a flag
            as the name of a file of flags, to which nothing can be added here.
    """
    flags = xla_flags()
    if flags and not flags.startswith("-"):
        raise conflict(
            XLA_FLAGS, "Put the flags themselves there, not the name of a file."
        )
    asked = re.findall(rf"{_DETERMINISTIC}(?:=(\S*))?(?:\s|$)", flags)
    if asked and asked[-1].lower() not in ("", "1", "true"):  # the last one wins
        raise conflict(XLA_FLAGS, f"Remove {_DETERMINISTIC} from it.")
    return flags if asked else f"{flags} {_DETERMINISTIC}=true".strip()


def threads(variable: str) -> int:
    """The threads that a variable asks for; by default, this process's processors."""
    return asked_for(variable) or processors()


def asked_for(variable: str) -> int | None:
    """A positive number in a variable, if there is one."""
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def conflict(variable: str, todo: str) -> ResilientError:
    """The error for a variable that conflicts."""
    return ResilientError(
        "An environment variable conflicts with deterministic(), which does not "
        "overwrite it.",
        received=f"{variable}={os.environ.get(variable)}",
        hint=todo,
    )


def too_late(what: str, received: object) -> ResilientError:
    """The error for a call after a framework has read its settings."""
    return ResilientError(
        f"deterministic() was called too late: {what}.",
        received=received,
        hint="Call it at the top of the script, before anything is computed.",
    )
