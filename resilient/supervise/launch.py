"""Runs one attempt: starts processes, watches them to the end, says why they ended.

Signals are forwarded all the while.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from resilient.supervise import evidence, status
from resilient.supervise.failures import (
    Ending,
    Evidence,
    classify,
    failed_by_itself,
    was_caused_by_peer_loss,
)
from resilient.supervise.hangs import Hang, HangLimit
from resilient.supervise.headway import Gain, Headway
from resilient.supervise.journal import Journal
from resilient.supervise.memory import oom_kills
from resilient.supervise.options import Options
from resilient.supervise.output import STDERR, STDOUT, Output, Stream
from resilient.supervise.process_group import ProcessGroup
from resilient.supervise.processes import Process
from resilient.supervise.signal_queue import SignalQueue

POLL = 0.25
_SLEPT = 5.0  # between two looks: we were suspended, not the training
_ENOUGH = 3  # Ctrl-C


@dataclass(frozen=True)
class Tools:
    """What all attempts share.

    Attributes:
        told: Forwarded signals: training should stop.
        limits: The limit on silence for each process of the gang.
    """

    options: Options
    output: Output
    inbox: SignalQueue
    journal: Journal
    headway: Headway
    told: list[int]
    limits: list[HangLimit]


class Launch:
    """One life of the processes.

    Args:
        tools: What all attempts share.
        number: Which attempt it is, from 1.

    Raises:
        OSError: If the command cannot be started.
    """

    def __init__(self, tools: Tools, number: int) -> None:
        self._tools = tools
        self._number = number
        self._since = time.time()
        self._kills = oom_kills()
        options = tools.options
        self._gang = ProcessGroup(options.command, options.nproc, options.environment)
        self._streams: list[Stream] = []
        self._errors: list[Stream] = []  # those of stderr, by rank
        self._speed = status.Speed()
        self._looked = time.monotonic()
        for limit in tools.limits:
            limit.start(self._looked)

    def run(self) -> tuple[Ending, Gain]:
        """Watch until everything has ended; why, and what it achieved."""
        tools, gang = self._tools, self._gang
        try:
            self._carry()
            pids = [member.pid for member in gang.members]
            tools.journal.emit("launched", launch=self._number, pids=pids)
            member, hang = self._watch()
            if gang.clean_up():
                tools.output.say("Killed processes that the training left behind.")
            for stream in self._streams:
                stream.finish()
            return self._judge(member, hang)
        except BaseException:
            gang.kill()  # without us nobody would watch them
            raise
        finally:
            gang.close()

    def _carry(self) -> None:
        """Pass on their output."""
        members, carry = self._gang.members, self._tools.output.carry
        for member in members:
            prefix = f"[{member.rank}] " if len(members) > 1 else ""
            self._errors.append(carry(member.stderr, STDERR, prefix))
            self._streams += [carry(member.stdout, STDOUT, prefix), self._errors[-1]]

    def _watch(self) -> tuple[Process, Hang | None]:
        """Wait for the end; force it if one failed or hangs."""
        gang = self._gang
        while not gang.over():
            self._forward(self._tools.inbox.wait(POLL))
            if (found := self._look()) is not None and not gang.over():
                member, hang = found
                self._dump(member, hang)
                return member, hang
            failed = gang.failed()
            # Told to stop, the others may still be saving, which may take any time.
            if failed is not None and not gang.over() and not self._tools.told:
                gang.stop(signal.SIGTERM, self._tools.options.gang_grace, self._wait)
                return failed, None
        return gang.failed() or gang.members[0], None

    def _look(self) -> tuple[Process, Hang] | None:
        """Read the heartbeats; return a hanging process, if there is one."""
        now = time.monotonic()
        before, self._looked = self._looked, now
        # While nobody reads our output (Ctrl-S), training cannot proceed.
        blocked = any(stream.blocked_since < before for stream in self._streams)
        hung = None
        for member, limit in zip(self._gang.members, self._tools.limits, strict=True):
            if now - before > _SLEPT or blocked:
                limit.slept(now - before)
            hang = limit.observe(now, member.beat())
            if hang is not None and member.returncode is None:
                hung = hung or (member, hang)
        self._show(now)
        return hung

    def _show(self, now: float) -> None:
        """Show in the status how the first process with a heartbeat is doing."""
        tools, leader = self._tools, self._leader()
        beat, speed = leader.beat(), None
        if beat is not None:
            tools.journal.settle(Path(beat.directory))
            speed = self._speed.observe(now, beat)
        silent = tools.limits[leader.rank].silent(now)
        told = bool(tools.told)
        tools.output.status = status.running(self._number, beat, speed, silent, told)

    def _leader(self) -> Process:
        members = self._gang.members
        return next((each for each in members if each.beat() is not None), members[0])

    def _dump(self, member: Process, hang: Hang) -> None:
        beat = hang.beat
        where = {} if beat is None else {"phase": beat.phase, "step": beat.step}
        self._tools.journal.emit(
            "hung",
            process=member.training_pid(),
            rank=member.rank,
            silent=hang.silent,
            limit=hang.limit,
            **where,
        )
        self._tools.output.say(
            f"Hung: {hang}. Its stack traces follow, then it is killed."
        )
        self._gang.abort(self._wait)

    def _forward(self, signals: Sequence[int]) -> None:
        told = self._tools.told
        for signum in signals:
            told.append(signum)
            if signum == signal.SIGINT and told.count(signum) >= _ENOUGH:
                self._tools.output.say("Killed the training after the third SIGINT.")
                self._gang.kill()
                continue
            self._gang.send(signum)
            name = signal.Signals(signum).name
            self._tools.output.say(
                f"{name} passed on to the training, which will not be restarted."
            )

    def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._forward(self._tools.inbox.wait(min(left, POLL)))

    def _judge(self, member: Process, hang: Hang | None) -> tuple[Ending, Gain]:
        """Say why it ended, and compare it with earlier attempts."""
        self._look()  # the last signs
        tools, directory = self._tools, self._directory(member)
        found = self._evidence(member)
        if hang is not None:
            found = replace(found, hang=str(hang))
        elif was_caused_by_peer_loss(found):
            member, found = self._cause() or (member, found)
        ending = classify(found)
        beat = member.beat()
        step = None if beat is None else beat.step
        steps = [step, *(event.get("step") for event in found.events)]
        reached = [step for step in steps if isinstance(step, int)]
        gain = tools.headway.after(directory, evidence.committed(directory), reached)
        if hang is not None and not gain.checkpoint:
            for limit in tools.limits:
                limit.relax()
        tools.journal.emit(
            "exited",
            launch=self._number,
            rank=member.rank,
            returncode=member.returncode,
            status=ending.status,
            kind=ending.kind,
            why=ending.why,
            signature=ending.signature,
            step=step if ending.step is None else ending.step,
            seconds=max(0.0, time.time() - self._since),
        )
        return ending, gain

    def _cause(self) -> tuple[Process, Evidence] | None:
        """The process that failed by itself; others may have ended before it."""
        for member in self._gang.members:
            found = self._evidence(member)
            if failed_by_itself(found):
                # We may have killed it as it was ending.
                code = found.returncode if 0 < found.returncode < 128 else 1
                return member, replace(found, returncode=code)
        return None

    def _evidence(self, member: Process) -> Evidence:
        directory, nproc = self._directory(member), self._tools.options.nproc
        events = evidence.events_of(
            directory, member.pid, member.beat(), self._since, nproc
        )
        assert member.returncode is not None
        errors = self._errors[member.rank].finish()
        kills = oom_kills() - self._kills
        return Evidence(member.returncode, events, errors, kills)

    def _directory(self, member: Process) -> Path | None:
        beat = member.beat() or self._leader().beat()
        return self._tools.journal.directory if beat is None else Path(beat.directory)
