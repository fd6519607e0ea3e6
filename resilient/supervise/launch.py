"""One attempt: start the processes, look on until they are over, say why they ended.

Signals are passed on meanwhile, whatever is being waited for.
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
    lost_another,
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
from resilient.telemetry.heartbeat import Beat

POLL = 0.25
_SLEPT = 5.0  # between two looks: then it was we who stood still
_ENOUGH = 3  # Ctrl-C


@dataclass(frozen=True)
class Tools:
    """What all attempts share.

    Attributes:
        told: Signals that were passed on: the training shall stop.
        limits: A limit on silence for each process of the gang.
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
        self._gang = ProcessGroup(tools.options.command, tools.options.nproc)
        self._streams: list[Stream] = []
        self._beats: list[Beat | None] = [None] * tools.options.nproc
        self._speed = status.Speed()
        self._looked = time.monotonic()
        for limit in tools.limits:
            limit.start(self._looked)

    def run(self) -> tuple[Ending, Gain]:
        """Look on until all is over; why it ended, and what it achieved."""
        tools, gang = self._tools, self._gang
        try:
            self._carry()
            tools.journal.emit("launched", launch=self._number, pids=gang.pids)
            member, hang = self._watch()
            if gang.clean_up():
                tools.output.say("Killed processes that the training left behind.")
            for stream in self._streams:
                stream.finish()
            return self._judge(member, hang)
        except BaseException:
            gang.kill()  # nobody would look after them
            raise
        finally:
            gang.close()

    def _carry(self) -> None:
        """Pass on what they print: of each its stdout, then its stderr."""
        members, carry = self._gang.members, self._tools.output.carry
        for member in members:
            prefix = f"[{member.rank}] " if len(members) > 1 else ""
            self._streams.append(carry(member.stdout, STDOUT, prefix))
            self._streams.append(carry(member.stderr, STDERR, prefix))

    def _watch(self) -> tuple[Process, Hang | None]:
        """Wait for the end, and bring it about where one failed or hangs."""
        gang = self._gang
        while not gang.over():
            self._take(self._tools.inbox.wait(POLL))
            if (found := self._look()) is not None and not gang.over():
                member, hang = found
                self._dump(member, hang)
                return member, hang
            failed = gang.failed()
            # Told to stop, each may be saving still: it has the time that it needs.
            if failed is not None and not gang.over() and not self._tools.told:
                gang.stop(signal.SIGTERM, self._tools.options.gang_grace, self._wait)
                return failed, None
        return gang.failed() or gang.members[0], None

    def _look(self) -> tuple[Process, Hang] | None:
        """Read the signs of life; a process that hangs, if one does."""
        tools, now = self._tools, time.monotonic()
        before, self._looked = self._looked, now
        # Where nobody reads what it prints (Ctrl-S), the training has to stand still.
        unread = any(stream.blocked_since < before for stream in self._streams)
        gap = now - before
        hung = None
        for member, limit in zip(self._gang.members, tools.limits, strict=True):
            if gap > _SLEPT or unread:
                limit.slept(gap)
            beat = member.beat() or self._beats[member.rank]
            self._beats[member.rank] = beat
            hang = limit.observe(now, beat)
            if hang is not None and member.returncode is None:
                hung = hung or (member, hang)
        if (beat := self._beat()) is not None:
            tools.journal.settle(beat.directory)
        speed = None if beat is None else self._speed.observe(now, beat)
        silent = tools.limits[0 if beat is None else self._beats.index(beat)].silent(
            now
        )
        told = bool(tools.told)
        tools.output.status = status.running(self._number, beat, speed, silent, told)
        return hung

    def _beat(self) -> Beat | None:
        return next((beat for beat in self._beats if beat is not None), None)

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
        self._tools.output.say(f"Hung: {hang}. Its stacks follow, then it is killed.")
        self._gang.abort(self._wait)

    def _take(self, signals: Sequence[int]) -> None:
        """Pass signals on."""
        told = self._tools.told
        for signum in signals:
            told.append(signum)
            if told.count(signal.SIGINT) >= _ENOUGH and signum == signal.SIGINT:
                self._tools.output.say("Killed the training, after the third SIGINT.")
                self._gang.kill()
                continue
            self._gang.send(signum)
            name = signal.Signals(signum).name
            self._tools.output.say(f"{name} passed on; no restart after this.")

    def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._take(self._tools.inbox.wait(min(left, POLL)))

    def _judge(self, member: Process, hang: Hang | None) -> tuple[Ending, Gain]:
        """Say why it ended, and compare with the attempts before."""
        self._look()  # the last signs
        tools, directory = self._tools, self._directory(member)
        events = evidence.events_of(
            directory, self._beats, set(self._gang.pids), self._since
        )
        found = self._evidence(member)
        if hang is not None:
            found = replace(found, hang=str(hang))
        elif lost_another(found):
            member, found = self._cause() or (member, found)
        ending = classify(found)
        own = self._beats[member.rank]
        step = None if own is None else own.step
        made = tools.headway.after(
            directory, evidence.committed(directory), events, step
        )
        if hang is not None and not made.checkpoint:
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
            seconds=time.time() - self._since,
        )
        return ending, made

    def _cause(self) -> tuple[Process, Evidence] | None:
        """The process that failed by itself: the others may have ended before it."""
        for member in self._gang.members:
            found = self._evidence(member)
            if failed_by_itself(found):
                # Whatever we did to it while it was ending.
                code = found.returncode if 0 < found.returncode < 128 else 1
                return member, replace(found, returncode=code)
        return None

    def _evidence(self, member: Process) -> Evidence:
        own, directory = self._beats[member.rank], self._directory(member)
        nproc = self._tools.options.nproc
        assert member.returncode is not None
        return Evidence(
            member.returncode,
            evidence.events_of(directory, [own], {member.pid}, self._since, nproc),
            self._streams[2 * member.rank + 1].finish(),
            oom_kills() - self._kills,
        )

    def _directory(self, member: Process) -> Path | None:
        beat = self._beats[member.rank] or self._beat()
        return self._tools.journal.directory if beat is None else Path(beat.directory)
