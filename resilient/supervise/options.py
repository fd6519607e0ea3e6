"""What the user may choose."""

from dataclasses import dataclass, field
from pathlib import Path

from resilient.supervise.backoff import Backoff
from resilient.supervise.restart_policy import Rules


@dataclass(frozen=True)
class Options:
    """How to supervise a command.

    Attributes:
        command: What to run.
        nproc: How many processes of it.
        directory: The checkpoint directory, if it is to be known beforehand.
        rules: When to stop restarting.
        backoff: How long to wait before a restart.
        hang_timeout: Longest silence while training, seconds; 0 for any, None to learn.
        startup_timeout: Longest start, seconds; None for the default.
        gang_grace: Seconds that the others get when one of a gang failed.
    """

    command: list[str]
    nproc: int = 1
    directory: Path | None = None
    rules: Rules = field(default_factory=Rules)
    backoff: Backoff = field(default_factory=Backoff)
    hang_timeout: float | None = None
    startup_timeout: float | None = None
    gang_grace: float = 10.0
