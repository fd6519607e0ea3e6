"""Starts one training process in its own session, signals it, and cleans up after it.

The session keeps a Ctrl-C in the terminal away from the process, to which the
supervisor forwards it once; and it makes leftovers easy to find.
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

# Seconds: a process that lost its parent often notices and ends in good order.
_ORPHANS = 1.0
_POLL = 0.02


class Process:
    """A running command, which writes its heartbeat to the file ``sign``.

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
        self._beat: Beat | None = None
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
        """As ``subprocess`` reports it; None while it runs."""
        return self._child.poll()

    def beat(self) -> Beat | None:
        """Its last sign of life."""
        self._beat = heartbeat.read(self._sign) or self._beat
        return self._beat

    def training_pid(self) -> int:
        """The process that trains; the command may be a script that started it."""
        if (beat := self.beat()) is not None:
            with contextlib.suppress(OSError):
                if os.getsid(beat.pid) == self.pid:
                    return beat.pid
        return self.pid

    def send(self, signum: int) -> None:
        """Signal the process that trains, not its group: workers must not die first."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.training_pid(), signum)

    def abort(self) -> None:
        """Make it print the stack traces of all its threads, and die."""
        if sys.platform == "linux":
            import resource

            # A core dump of all its memory would take long and help nobody.
            with contextlib.suppress(OSError, ValueError):
                pid = self.training_pid()
                _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
        self.send(signal.SIGABRT)
        self.send(signal.SIGCONT)  # a suspended process must run to print

    def kill(self) -> None:
        """Kill its whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self._child.wait()

    def clean_up(self) -> bool:
        """After it has ended, end what it left behind; whether anything was killed."""
        deadline = time.monotonic() + _ORPHANS
        while self._has_group():
            if time.monotonic() > deadline:
                self.kill()
                return True
            time.sleep(_POLL)
        return False

    def _has_group(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            # As the first process of a container we adopt orphans, and must reap them.
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False  # macOS answers "not permitted" for zombies
        return True
