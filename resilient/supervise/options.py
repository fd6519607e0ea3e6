"""The options of ``resilient run``, and the commands that it refuses."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from resilient.errors import NotSupportedError
from resilient.serialization.redaction import redacted_command

HALF_AN_HOUR = 1800.0
_PYTHON = r"(\S*/)?(python|pypy)[\d.]*( -[^cmV\s-]+)*"
_SHELL = r"(\S*/)?(ba|da|z|k)?sh( -[^c\s-]+)*"
# Before the interpreter there may be others, such as "env", if a dash follows it.
_READS_PROGRAM = re.compile(
    rf"{_PYTHON}|{_SHELL}|(.* )?({_PYTHON} -|{_SHELL} -s?)( .*)?", re.DOTALL
)


def require_process_groups() -> None:
    """Raise if a script and everything it started cannot be ended together.

    Raises:
        NotSupportedError: This is Windows.
    """
    if not hasattr(os, "killpg"):
        raise NotSupportedError(
            "This command does not work on Windows, which has no process groups "
            "to end a script and everything it started.",
            hint="Let a scheduler or a loop in the shell start the script again: "
            "resilient.fit resumes by itself. Or use WSL.",
        )


def require_program(command: list[str]) -> None:
    """Raise if an interpreter would read its program from stdin, which is empty.

    Raises:
        NotSupportedError: It would find nothing there, and "finish".
    """
    text = " ".join(redacted_command(command))
    if _READS_PROGRAM.fullmatch(text):
        raise NotSupportedError(
            "The program would be read from stdin, which is empty for the command.",
            received=text,
            hint="Write it to a file, and name that: resilient run -- python train.py",
        )


@dataclass(frozen=True)
class Options:
    """How to supervise a command; durations in seconds.

    Attributes:
        command: What to run.
        nproc: How many processes of it to start.
        environment: Variables to add to the supervisor's environment.
        directory: The checkpoint directory, if known beforehand.
        same_failure: Give up when the same failure occurs this many times in a row.
        no_progress: Give up after this many restarts without a newer checkpoint.
        max_restarts: Give up after this many restarts; None for no limit.
        backoff: Longest wait before the first restart.
        hang_timeout: Longest silence while training; 0 detects no hangs.
        startup_timeout: Longest start, or save; None: half an hour, for scripts that
            have sent a heartbeat.
        gang_grace: How long the others may save when one process has failed.
    """

    command: list[str]
    nproc: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None
    same_failure: int = 3
    no_progress: int = 10
    max_restarts: int | None = None
    backoff: float = 1.0
    hang_timeout: float = HALF_AN_HOUR
    startup_timeout: float | None = None
    gang_grace: float = 10.0
