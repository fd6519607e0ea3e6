"""One training process: started in a session of its own, signalled, cleaned up after.

In a session of its own, so that a Ctrl-C in the terminal reaches the supervisor alone,
which passes it on once; and so that whatever the process leaves behind can be found.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from resilient.telemetry import heartbeat
from resilient.telemetry.heartbeat import Beat

if sys.platform == "linux":
    import resource

# A process that lost its parent often sees that by itself, and ends in good order.
_ORPHANS = 1.0
_POLL = 0.02


class Process:
    """A running command.

    Args:
        command: What to run.
        environment: Its environment.
        sign: The file for its signs of life.
        rank: Which of the gang it is.

    Attributes:
        returncode: None while it runs.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        sign: Path,
        rank: int,
    ) -> None:
        self.rank = rank
        self._sign = sign
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._child.pid
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self.stdout: IO[bytes] = self._child.stdout
        self.stderr: IO[bytes] = self._child.stderr

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    def beat(self) -> Beat | None:
        """Its last sign of life."""
        return heartbeat.read(self._sign)

    def training_pid(self) -> int:
        """The process that trains, if a script starts it; else the one we started."""
        beat = self.beat()
        if beat is not None:
            with contextlib.suppress(OSError):
                if os.getsid(beat.pid) == self.pid:
                    return beat.pid
        return self.pid

    def send(self, signum: int) -> None:
        """Signal the process that trains, not the group: workers must not die first."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.training_pid(), signum)

    def abort(self) -> None:
        """Have it print the stacks of all its threads, and die of it."""
        if sys.platform == "linux":
            # Memory dumped to the disk would help nobody and take long.
            with contextlib.suppress(OSError, ValueError):
                pid = self.training_pid()
                _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
        self.send(signal.SIGABRT)
        self.send(signal.SIGCONT)  # a stopped process must run to print

    def kill(self) -> None:
        """End all of its process group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self._child.wait()

    def clean_up(self) -> bool:
        """End what it left behind; only when it is over.

        Returns:
            Whether something had to be killed.
        """
        deadline = time.monotonic() + _ORPHANS
        while self._has_group():
            if time.monotonic() > deadline:
                self.kill()
                return True
            time.sleep(_POLL)
        return False

    def _has_group(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            # As the first process of a container we inherit what lost its parent.
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False  # on macOS "not permitted" is said of zombies
        return True
