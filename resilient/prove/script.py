"""Starts the user's script with its runs in a scratch directory, and kills it."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from resilient.errors import ResilientError
from resilient.prove.moments import Moment
from resilient.prove.recorded import STARTED, Place, events_below
from resilient.storage import scratch
from resilient.storage.layout import HEARTBEAT
from resilient.supervise.daemons import kill_daemons
from resilient.telemetry import heartbeat

_POLL = 0.005  # seconds
_LOG = "output-{}.txt"
_TAIL = 4000  # bytes of the output


@dataclass(frozen=True)
class Ending:
    """How a process of the script ended.

    Attributes:
        status: Its exit status; negative for a signal, as in ``subprocess``.
        killed: Whether we killed it.
        phase: What training was doing then, by its last heartbeat.
        reached: The last place that it recorded.
        restored: Where it resumed, by run; a run that began anew is not there.
        went_on: The runs that it trained on from a checkpoint.
        repeated: How many batches repeated after that, by run, where some could.
        output: The file with its output.
    """

    status: int
    killed: bool
    phase: str
    reached: Place | None
    restored: Mapping[str, Place]
    went_on: frozenset[str]
    repeated: Mapping[str, int]
    output: Path

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        with open(self.output, "rb") as file:
            file.seek(max(0, self.output.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")


class Script:
    """The user's command, whose runs lie below one directory.

    Args:
        command: The program and its arguments.
        directory: Where its runs go.
        variables: Added to its environment.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, variables: Mapping[str, str]
    ) -> None:
        self._command, self.directory = command, directory
        self._variables = {**scratch.environment(directory), **variables}
        self._started = 0

    def run(
        self,
        kill: Moment | None,
        order: Mapping[Place, int],
        tick: Callable[[int], None],
    ) -> Ending:
        """Run it until it ends or is killed.

        Args:
            kill: When to kill it; None: never.
            order: The places that an uninterrupted run reaches, numbered.
            tick: Called regularly with how many of them were reached.

        Raises:
            ResilientError: It cannot be started.
        """
        self._started += 1
        output = self.directory / _LOG.format(self._started)
        seen = _Tail(self.directory, order)
        with open(output, "wb") as file:
            child = self._start(file)
        try:
            killed = self._watch(child, kill, seen, tick)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started
            child.wait()
            kill_daemons(scratch.VARIABLE, str(self.directory))
        seen.look(at_all=True)
        status = child.returncode
        killed = killed and status == -signal.SIGKILL  # and did not end just before
        phase = self._phase(seen.last) if killed else ""
        did = seen.last, seen.restored, frozenset(seen.went_on), seen.repeated
        return Ending(status, killed, phase, *did, output)

    def _start(self, output: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._variables},
                start_new_session=True,
            )
        except OSError as error:
            raise ResilientError(
                "The command cannot be started.",
                received=f"{self._command[0]}: {error.strerror}",
            ) from error

    def _watch(
        self,
        child: "subprocess.Popen[bytes]",
        kill: Moment | None,
        seen: "_Tail",
        tick: Callable[[int], None],
    ) -> bool:
        while child.poll() is None:
            seen.look()
            tick(seen.reached + 1)
            if kill is not None and seen.passed(kill):
                time.sleep(kill.delay)
                return child.poll() is None
            time.sleep(_POLL)
        return False

    def _phase(self, place: Place | None) -> str:
        found = self.directory / ("" if place is None else place.run) / HEARTBEAT
        beat = heartbeat.read(found)
        return "starting" if beat is None else beat.phase


class _Tail:
    """Follows the events that a process of the script adds.

    Attributes:
        reached: The highest number of a place so far; -1: none.
        last: The last place.
        trains: Whether it has begun to train.
        restored: Where it resumed, by run.
        went_on: The runs that it trained on from there.
        repeated: How many batches repeated there, by run.
        saved: The runs that have a checkpoint to resume from.
    """

    def __init__(self, directory: Path, order: Mapping[Place, int]) -> None:
        self._directory, self._order = directory, order
        self._known = dict(events_below(directory))
        self._read = {path: path.stat().st_size for path in self._known}
        self._looked = 0.0
        # Of each run and process: where it resumed, until it has trained.
        self._waiting: dict[tuple[str, int], Place | None] = {}
        self.reached, self.trains = -1, False
        self.last: Place | None = None
        self.restored: dict[str, Place] = {}
        self.went_on, self.saved = set[str](), set[str]()
        self.repeated: dict[str, int] = {}

    def passed(self, moment: Moment) -> bool:
        """Whether the place of a moment was reached."""
        place = moment.place
        if place is None:
            return bool(self.saved) if moment.saved else self.trains
        saved = not moment.saved or place.run in self.saved
        return saved and self.reached >= moment.order

    def look(self, *, at_all: bool = False) -> None:
        """Read what is new; ``at_all``: in files that are new as well."""
        now = time.monotonic()
        if at_all or not self._known or now - self._looked > 20 * _POLL:
            self._looked, self._known = now, dict(events_below(self._directory))
        for path, process in self._known.items():
            run = path.parent.relative_to(self._directory).as_posix()
            for line in self._new_lines(path):
                self._take(run, process, line)

    def _new_lines(self, path: Path) -> list[bytes]:
        read = self._read.get(path, 0)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < read:  # another one by this name
                    read = 0
                file.seek(read)
                new = file.read()
        except FileNotFoundError:  # the script has deleted its run
            new, read = b"", 0
        lines, _, _ = new.rpartition(b"\n")
        self._read[path] = read + len(lines) + bool(lines)
        return lines.splitlines()

    def _take(self, run: str, process: int, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a kill
            return
        place = Place.of(run, process, event)
        if event["event"] == STARTED:
            self.trains = True
        elif event["event"] == "saved":
            self.saved.add(run)
        elif event["event"] == "restored":
            self.saved.add(run)
            if (run, process) not in self._waiting:  # once it has trained: a rollback
                self._waiting[run, process] = self.restored[run] = place
        elif event["event"] in ("repeated", "not repeated"):
            self.repeated[run] = event["repeated"]
        elif event["event"] == "digest":
            self.last = place
            self.reached = max(self.reached, self._order.get(place, -1))
            since = self._waiting.get((run, process))
            if since is not None and place.step > since.step:
                self.went_on.add(run)
            self._waiting[run, process] = None
