"""The options of ``resilient run``."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from resilient.errors import NotSupportedError


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
        max_backoff: Longest wait before any restart.
        hang_timeout: Longest silence while training; 0 for no limit, None to learn it.
        startup_timeout: Longest start; None for the default.
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
    max_backoff: float = 300.0
    hang_timeout: float | None = None
    startup_timeout: float | None = None
    gang_grace: float = 10.0
