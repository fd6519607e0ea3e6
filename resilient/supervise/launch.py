"""Runs one attempt: starts processes, watches them to the end, says why they ended.

Signals are forwarded all the while.
"""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from resilient.storage.layout import committed_steps
from resilient.supervise.evidence import Evidence, events_of, oom_kills
from resilient.supervise.failures import Ending, classify, lost_a_peer
from resilient.supervise.options import Options
from resilient.supervise.output import Stderr
from resilient.supervise.processes import HangLimit, Process, ProcessGroup
from resilient.supervise.restart_policy import Course, RestartPolicy
from resilient.telemetry.events import Events

_POLL = 0.1  # seconds
_SLEPT = 5.0  # between two polls, at most: then we were suspended, not the training
_DUMP = 10.0  # to print stack traces
_ENOUGH = 3  # Ctrl-C


class Shared:
    """What all attempts share.

    Attributes:
        directory: The checkpoint directory; None until a heartbeat names it.
        stops: Signals that were forwarded: training should stop.
        limits: The limit on silence for each process.
    """

    def __init__(self, options: Options) -> None:
        self.options, self.directory = options, options.directory
        self.stderr = Stderr()
        self.policy, self.course = RestartPolicy(options), Course()
        self.limits = [HangLimit(options) for _ in range(options.nproc)]
        self.stops: list[int] = []
        self._arrived: deque[int] = deque()
        # Each of them means that training should stop; Windows has the first two.
        for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
            signum = getattr(signal, name, None)
            # Under nohup, hangups are to be ignored.
            if signum and signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, lambda number, _: self._arrived.append(number))

    def emit(self, event: str, **fields: Any) -> None:
        """Append an event to those of the run, once training has its directory."""
        if self.directory is not None and self.directory.is_dir():
            Events(self.directory).emit(event, **fields)

    def wait(self, seconds: float = _POLL) -> list[int]:
        """Wait for a moment at most; the signals that arrived, in order."""
        time.sleep(min(seconds, _POLL))
        return [self._arrived.popleft() for _ in range(len(self._arrived))]


class Launch:
    """One life of the processes.

    Args:
        shared: What all attempts share.

    Raises:
        OSError: If the command cannot be started.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared, self._kills = shared, oom_kills()
        shared.course.start(time.time())
        self._gang = ProcessGroup(shared.options, shared.stderr)
        self._polled, self._clock = time.monotonic(), 0.0
        for limit in shared.limits:
            limit.start(self._clock)

    def run(self) -> tuple[Ending, str | None]:
        """Watch until everything has ended; why, and why there must be no restart."""
        shared, gang = self._shared, self._gang
        try:
            member, hang = self._watch()
            self._poll(over=True)  # the last signs
        finally:
            if gang.close():  # without us nobody would watch them
                shared.stderr.say("Killed processes that the training left behind.")
        return self._judge(member, hang)

    def _watch(self) -> tuple[Process, str | None]:
        """Wait for the end; force it if one failed or hangs."""
        gang, shared = self._gang, self._shared
        while not gang.over():
            self._forward(shared.wait())
            hung, failed = self._poll(), gang.failed()
            if gang.over():
                break
            if hung is not None:
                self._dump(hung[1])
                return hung
            # Asked to stop, the others may still be saving, which may take any time.
            if failed is not None and not shared.stops:
                gang.send(signal.SIGTERM)
                self._wait(shared.options.gang_grace, gang.over)
                return failed, None
        return gang.failed() or gang.members[0], None

    def _poll(self, over: bool = False) -> tuple[Process, str] | None:
        """Read the heartbeats; return a hanging process, if there is one."""
        shared, now, found = self._shared, time.monotonic(), None
        self._clock += min(now - self._polled, _SLEPT)
        self._polled = now
        for member, limit in zip(self._gang.members, shared.limits, strict=True):
            hang = limit.observe(self._clock, member.beat())
            if hang is not None and member.poll() is None:
                found = found or (member, hang)
        if (beat := self._gang.beat()) is not None:
            shared.directory = Path(beat.directory)
            if turn := shared.course.turn(beat, over):
                shared.stderr.say(turn)
        return found

    def _dump(self, hang: str) -> None:
        """Make all print stack traces and die; a hang rarely concerns just one."""
        say = self._shared.stderr.say
        say(f"Hung: {hang}. Its stack traces follow, then it is killed.")
        # A suspended process must run to print.
        self._gang.send(signal.SIGABRT, signal.SIGCONT)
        self._wait(_DUMP, self._gang.over)

    def _forward(self, signals: list[int]) -> None:
        stops, say = self._shared.stops, self._shared.stderr.say
        for signum in signals:
            stops.append(signum)
            if signum == signal.SIGINT and stops.count(signum) >= _ENOUGH:
                say("Killed the training after the third SIGINT.")
                self._gang.kill()
            else:
                self._gang.send(signum)
                name = signal.Signals(signum).name
                say(f"{name} passed on to the training, which will not be restarted.")

    def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and (rest := deadline - time.monotonic()) > 0:
            self._forward(self._shared.wait(rest))

    def _judge(self, member: Process, hang: str | None) -> tuple[Ending, str | None]:
        """Say why it ended, and whether the policy allows a restart."""
        shared, found = self._shared, self._evidence(member, hang)
        if hang is None and lost_a_peer(found):
            member, found = self._cause() or (member, found)
        ending, directory = classify(found), shared.directory
        if ending.kind == "finished" and found.stopped_short:
            shared.stderr.say(f"The run in {directory} did not end.")
        if shared.options.nproc > 1 and ending.kind != "finished":
            ending = replace(ending, why=f"process {member.rank}: {ending.why}")
        beat = member.beat()
        step = beat.step if ending.step is None and beat is not None else ending.step
        shared.emit(
            "exited",
            rank=member.rank,
            returncode=member.returncode,
            **asdict(replace(ending, step=step)),
        )
        steps: list[int] = []
        with contextlib.suppress(OSError):
            steps = [] if directory is None else committed_steps(directory)
        anew = shared.course.end(self._gang.beat())
        return ending, shared.policy.after(ending, directory, steps, anew)

    def _cause(self) -> tuple[Process, Evidence] | None:
        """The process that failed in fit by itself; others may have ended before it."""
        for member in self._gang.members:
            found = self._evidence(member)
            if found.last.get("event") == "failed" and not lost_a_peer(found):
                # We may have killed it as it was ending.
                return member, replace(found, returncode=1)
        return None

    def _evidence(self, member: Process, hang: str | None = None) -> Evidence:
        events = events_of(member.beat(), self._shared.options.nproc)
        errors = self._gang.errors[member.rank].finish()
        kills = oom_kills() - self._kills
        return Evidence(member.returncode, events, errors, kills, hang)
