"""Starts the user's script with its runs in a scratch directory, and kills it."""

import contextlib
import os
import random
import signal
import subprocess
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from resilient.errors import ResilientError
from resilient.prove.recorded import (
    DIGEST,
    STARTED,
    Place,
    Recorded,
    events_below,
    files_below,
)
from resilient.storage import scratch
from resilient.supervise.processes import end_all
from resilient.telemetry.events import read_events

_POLL = 0.02  # seconds
_LAST = 0.9  # part of the training: later, nothing may be left to train
_TAIL = 4000  # bytes of the output


@dataclass(frozen=True)
class Moment:
    """When to kill: some time after the script reaches a place.

    Attributes:
        reached: How many places; 0: the start of its first training.
        delay: Seconds after that.
        saved: Whether it also waits until there is a checkpoint to resume from.
    """

    reached: int
    delay: float
    saved: bool = False


def moments(of: Recorded, kills: int, seed: int) -> list[Moment]:
    """When to kill: at random steps and, every other time, at random times.

    Most of the time, a script may compile its first step, or validate. The last kill
    waits for a save: training may be faster than the first one.

    Args:
        of: What an uninterrupted run recorded.
        kills: How many.
        seed: Chooses them.
    """
    chosen, times, found = random.Random(seed), of.times, []
    for number in range(kills):
        part = chosen.uniform(0, _LAST)
        step = int(part * (len(times) - 1))
        at = chosen.uniform(*times[step : step + 2])
        if number % 2:
            at = times[0] + part * (times[-1] - times[0])
        reached = bisect_right(times, at) - 1
        found.append(Moment(reached, at - times[reached]))
    found.sort(key=lambda each: (each.reached, each.delay))
    return [*found[:-1], replace(found[-1], saved=True)]


@dataclass(frozen=True)
class Ending:
    """How a process of the script ended.

    Attributes:
        status: Its exit status; negative for a signal, as in ``subprocess``.
        killed: Whether we killed it.
        output: The file with its output.
        reached: The last place that it recorded.
        restored: Where it resumed, by run; a run that began anew is not there.
        went_on: The runs that it trained on from a checkpoint.
    """

    status: int
    killed: bool
    output: Path
    reached: Place | None
    restored: Mapping[str, Place]
    went_on: set[str]

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        with open(self.output, "rb") as file:
            file.seek(max(0, self.output.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")

    def resumed(self, before: "Ending") -> str:
        """Describe where it resumed after a kill; empty if it did not train."""
        run = "" if before.reached is None else before.reached.run
        if run in self.restored:
            return str(self.restored[run])
        if self.reached is None and not self.restored:
            return ""
        return f"the start of {run}" if run not in ("", ".") else "the start"


class Script:
    """The user's command, whose runs lie below one directory.

    Args:
        command: The program and its arguments.
        directory: Where its runs go.
        variables: Added to its environment.
        order: The places that it reaches without a kill, numbered, where they matter.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        variables: Mapping[str, str],
        order: Mapping[Place, int],
    ) -> None:
        self._command, self.directory, self._order = command, directory, order
        self._variables = {**scratch.environment(directory), **variables}
        self._started = 0

    def run(self, kill: Moment | None = None) -> Ending:
        """Run it until it ends, or is killed at a moment.

        Raises:
            ResilientError: It cannot be started.
        """
        self._started += 1
        output, began = self.directory / f"output-{self._started}.txt", time.time()
        with open(output, "wb") as file:
            child = self._start(file)
        try:
            killed = kill is not None and self._await(child, kill, began)
            if not killed:
                child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it has started
            child.wait()
            end_all(f"{scratch.VARIABLE}={self.directory}\0")
        status = child.returncode
        killed = killed and status == -signal.SIGKILL  # and did not end just before
        return Ending(status, killed, output, *self._did(began))

    def _start(self, output: IO[bytes]) -> Any:
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

    def _await(self, child: Any, kill: Moment, began: float) -> bool:
        """Wait for the moment to kill; whether it came before the end."""
        while child.poll() is None:
            start = time.monotonic()
            here = self._reached(began) >= kill.reached
            if here and (not kill.saved or self._saved()):
                time.sleep(kill.delay)
                return child.poll() is None
            time.sleep(max(_POLL, 4 * (time.monotonic() - start)))  # leaves it the CPU
        return False

    def _reached(self, began: float) -> int:
        """How many places it has reached since it began; -1: it does not train yet."""
        found, signs = [-1], (f'"{DIGEST}"', f'"{STARTED}"')
        for run, folder, process in files_below(self.directory):
            for event in deque(read_events(folder, process, having=signs), maxlen=1):
                if event["time"] >= began:
                    place = Place.of(run, process, event)
                    trains = event["event"] != STARTED
                    found.append(self._order.get(place, -1) + 1 if trains else 0)
        return max(found)

    def _saved(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        folders = [folder for _, folder, _ in files_below(self.directory)]
        return any(any(read_events(each, having=['"saved"'])) for each in folders)

    def _did(self, began: float) -> tuple[Place | None, dict[str, Place], set[str]]:
        """What it reached, restored and trained on since it began."""
        last, reached, restored = 0.0, None, dict[str, Place]()
        went_on = set[str]()
        # Of each run and process: where it resumed, until it has trained.
        waiting: dict[tuple[str, int], Place | None] = {}
        for place, event in events_below(self.directory):
            of = place.run, place.process
            if event["time"] < began:
                continue
            if event["event"] == "restored" and of not in waiting:  # and no rollback
                waiting[of] = restored[place.run] = place
            elif event["event"] == DIGEST:
                since, waiting[of] = waiting.get(of), None
                if since is not None and place.step > since.step:
                    went_on.add(place.run)
                if event["time"] >= last:
                    last, reached = event["time"], place
        return reached, restored, went_on
