"""Starts the processes of an attempt, signals them, and ends all that they started.

Each has its own session, which keeps a Ctrl-C in the terminal away from it: the
supervisor forwards that once. ``HangLimit`` decides when its silence is a hang.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from resilient.supervise import environment
from resilient.supervise.options import HALF_AN_HOUR, Options
from resilient.supervise.output import Stderr, Tee
from resilient.telemetry import heartbeat
from resilient.telemetry.heartbeat import VARIABLE, Beat

# Seconds: what lost its parent often notices and ends in good order.
_ORPHANS = 1.0
_POLL = 0.02
_TRAINING = ("training", "validating", "replaying")


class Process(subprocess.Popen[bytes]):
    """A running command, which writes its heartbeat to the file ``sign``.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self, options: Options, variables: Mapping[str, str], sign: Path, rank: int
    ) -> None:
        super().__init__(
            options.command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
        self.rank, self._sign = rank, sign
        self._beat: Beat | None = None

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

    def has_group(self) -> bool:
        """Whether anything is alive in its process group."""
        with contextlib.suppress(ChildProcessError):
            # As the first process of a container we adopt orphans, and must reap them.
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        # macOS answers "not permitted" for zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, 0)
            return True
        return False

    def kill_group(self) -> None:
        """Kill it and whatever it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class HangLimit:
    """Limits the silence of one process, and of its replacements after restarts.

    The supervisor measures time itself, between two changes of the heartbeat, and
    ignores the times that training writes, because clocks jump and machines sleep. A
    script that never sends a heartbeat is not judged, unless the user says how long a
    start may take.
    """

    def __init__(self, options: Options) -> None:
        self._training, self._startup = options.hang_timeout, options.startup_timeout
        self._since = 0.0
        self._beat: Beat | None = None

    def start(self, now: float) -> None:
        """Begin with a new process."""
        self._since, self._beat = now, None

    def observe(self, now: float, beat: Beat | None) -> str | None:
        """Record the heartbeat; if the silence is too long, describe the hang."""
        last, silent = self._beat, now - self._since
        if beat is not None and beat != last:
            self._since, self._beat = now, beat
            if self._startup is None:  # it gives signs, so its next start has a limit
                self._startup = HALF_AN_HOUR
            return None
        limit = self._limit()
        if limit is None or silent <= limit:
            return None
        where = "since it was started"
        if last is not None:
            where = f"in phase {last.phase!r} at step {last.step:,}"
        return f"no heartbeat for {silent:,.1f} s {where} (the limit is {limit:,.1f} s)"

    def _limit(self) -> float | None:
        """Seconds of silence allowed now; None for no limit."""
        phase = None if self._beat is None else self._beat.phase
        if self._training == 0 or phase == "ended":
            return None
        return self._training if phase in _TRAINING else self._startup


class ProcessGroup:
    """Processes that run the same command, none of which can train without the others.

    Raises:
        OSError: If one of them cannot be started; none runs on.
    """

    def __init__(self, options: Options, stderr: Stderr) -> None:
        # A new directory for each attempt: an old heartbeat cannot pass for a new one.
        self._signs = tempfile.TemporaryDirectory(
            prefix="resilient-", ignore_cleanup_errors=True
        )
        nproc = options.nproc
        ports = environment.free_ports(nproc + 2 if nproc > 1 else 0)
        base = {**os.environ, **options.environment}
        self.members: list[Process] = []
        self.errors: list[Tee] = []  # their stderr, by rank
        try:
            for rank in range(nproc):
                sign = Path(self._signs.name, f"heartbeat-{rank}")
                own = environment.of_process(base, sign, rank, nproc, ports)
                member = Process(options, own, sign, rank)
                self.members.append(member)
                self.errors.append(Tee(member, stderr))
        except BaseException:
            self.close()
            raise

    def over(self) -> bool:
        """Whether all have ended."""
        return all(member.poll() is not None for member in self.members)

    def failed(self) -> Process | None:
        """One that failed; among several, preferably one that a signal killed."""
        failed = [member for member in self.members if member.poll()]
        # The death of one makes the others fail with connection errors.
        return min(failed, key=lambda each: (each.returncode or 0) > 0, default=None)

    def beat(self) -> Beat | None:
        """The last sign of life of the first process that gave one."""
        beats = (member.beat() for member in self.members)
        return next((beat for beat in beats if beat is not None), None)

    def send(self, *signals: int) -> None:
        """Signal those that train, not their groups: workers must not die first."""
        for member in self.members:
            for signum in signals if member.poll() is None else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.training_pid(), signum)

    def kill(self) -> None:
        for member in self.members:
            if member.poll() is None:
                member.kill_group()

    def close(self) -> bool:
        """Kill all, and end what they started; whether any of that was killed.

        Processes in sessions of their own are found on Linux only, by the variable that
        names the heartbeat file, unless they were started without it.
        """
        self.kill()
        for member in self.members:
            member.wait()
        killed = end_all(f"{VARIABLE}={self._signs.name}/", self.members, _ORPHANS)
        self._signs.cleanup()
        return killed


def end_all(
    setting: str, groups: Sequence[Process] = (), patience: float = 0.0
) -> bool:
    """Wait for processes, and kill those that are still there; whether there were any.

    Args:
        setting: The beginning of a variable, as in ``NAME=value``, that they have.
        groups: They, and whatever is in their process groups.
        patience: How many seconds to wait before.
    """
    began, killed = time.monotonic(), False
    while (waited := time.monotonic() - began) < patience + _ORPHANS:
        alive, daemons = [each for each in groups if each.has_group()], _given(setting)
        if not alive and not daemons:
            break
        if waited >= patience:
            killed = True
            for member in alive:
                member.kill_group()
            for pid in daemons:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)
    return killed


def _given(setting: str) -> list[int]:
    """Processes whose environment has a setting that begins like this."""
    wanted, found = os.fsencode(f"\0{setting}"), []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            if wanted in b"\0" + variables.read_bytes():
                found.append(int(variables.parent.name))
    return found
