"""How an attempt dies: by its own hand, at the place that the table names."""

import glob
import os
import random
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_EVERY = 0.0005  # seconds
LONGEST_SAVE = 0.008
LONGEST_WAIT = 60.0
NOTICED = 2.0  # a file named stop is seen within half a second
_GRAMMAR = re.compile(
    r"(?:(?P<where>second|worker \d): )?(?P<event>[a-z ]+?)"
    r"(?: (?P<first>\d+)(?::(?P<second>\d+))?)?"
    r"(?P<at_once> !)?(?: (?P<way>SIGTERM|SIGINT|stop))?"
)


@dataclass(frozen=True)
class Kill:
    """A parsed kill, see ``table``."""

    where: str
    event: str
    first: int
    second: int
    at_once: bool
    way: str

    @classmethod
    def parse(cls, text: str) -> "Kill":
        found = _GRAMMAR.fullmatch(text)
        assert found, text
        return cls(
            where=found["where"] or "",
            event=found["event"],
            first=int(found["first"] or 0),
            second=int(found["second"] or 0),
            at_once=bool(found["at_once"]),
            way=found["way"] or "SIGKILL",
        )

    @property
    def status(self) -> int:
        """What the process ends with."""
        ends = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130}
        return ends.get(self.way, 143)


def committed(directory: Path) -> set[str]:
    """The checkpoints under a directory: ``step-*`` with a manifest."""
    found = map(
        Path, glob.iglob(f"{directory}/**/step-*/manifest.json", recursive=True)
    )
    named = {path.parent for path in found if path.parent.name[5:].isdigit()}
    return {str(path) for path in named if "quarantine" not in path.parts}


class Killer:
    """Where the attempt is, and what is to happen there.

    Attributes:
        trained: What it trained itself, as a program says; it is never restored.
    """

    def __init__(self, kill: Kill | None, directory: Path, where: str = "") -> None:
        self.kill = kill if kill and kill.where == where else None
        self.directory = directory
        self.before = committed(directory)
        self.trained: list[Any] = []
        self._older = self._directories()
        self._saved: set[str] = set()
        if self.kill and self.kill.event == "save":
            watch = threading.Thread(target=self._die_in_save, daemon=True)
            watch.start()

    def reached(self, event: str, first: int, second: int = 0) -> None:
        """Say where the program is; a later place is as good as the one that is due."""
        kill = self.kill
        if kill and kill.event == "save" and self._saves() >= kill.first:
            time.sleep(LONGEST_WAIT)  # a fast program is at its end in 8 milliseconds
        if (
            kill
            and kill.event == event
            and (first, second) >= (kill.first, kill.second)
        ):
            self.kill = None  # one signal is enough
            self._die(kill)

    def step(self, step: int) -> None:
        """The same for the body of a loop."""
        self.trained.append(step)
        self.reached("step", step)

    def _die(self, kill: Kill) -> None:
        if kill.way == "SIGKILL" and not kill.at_once:
            self._wait_for_a_checkpoint()
        if kill.way == "stop":
            for checkpoint in committed(self.directory):
                Path(checkpoint).with_name("stop").touch()
            time.sleep(NOTICED)  # a fast program is at its end before
        else:
            os.kill(os.getpid(), signal.Signals[kill.way])

    def _wait_for_a_checkpoint(self) -> None:
        until = time.monotonic() + LONGEST_WAIT
        while not committed(self.directory) - self.before:
            assert time.monotonic() < until, f"no checkpoint in {self.directory}"
            time.sleep(LOOK_EVERY)

    def _die_in_save(self) -> None:
        """As soon as so many directories of checkpoints have appeared, or a bit later.

        If the first one of a run it dies before anything can be resumed: that is right.
        """
        assert self.kill is not None
        seconds = random.Random(self.kill.first).uniform(0, LONGEST_SAVE)
        while self._saves() < self.kill.first:
            time.sleep(LOOK_EVERY)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def _saves(self) -> int:
        """How many saves of this attempt began."""
        self._saved |= self._directories() - self._older
        return len(self._saved)

    def _directories(self) -> set[str]:
        """Steps of which there is anything: what is written has a longer name."""
        return {
            Path(path).name[:13]
            for path in glob.iglob(f"{self.directory}/**/step-*", recursive=True)
        }
