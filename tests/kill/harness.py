"""Start attempts, kill them, and compare what the last one left with what it should be.

A ``Run`` is a directory and the attempts on it. Attempts after the first committed
checkpoint get another seed than the run began with: what an exact resume needs must
come out of the checkpoint, not out of a script that happens to be seeded.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.compiling import compile_once
from support.forking import Client, environment

from . import attempt, record
from .record import Record
from .scenarios import SCENARIOS

SEED = 1
ANY = "any"  # in place of a seed: leave random number generators to chance
LIMIT = 150.0
KILLED = -signal.SIGKILL
STOPPED = (143, 130)  # asked to, by SIGTERM or SIGUSR1, and by SIGINT


class Server:
    """Where attempts come from, see ``server``.

    Args:
        cache: Directory for compiled programs.
        modules: What it imports besides the backend.
    """

    def __init__(self, cache: Path, modules: Sequence[str] = ()) -> None:
        command = ["-m", f"{__package__}.server", *modules]
        self._client = Client(command, environment() | compile_once(cache))
        self.stop = self._client.stop

    def perform(self, order: attempt.Order, log: Path) -> dict[str, Any]:
        request = {"order": order.to_json(), "log": str(log), "limit": LIMIT}
        return self._client.ask(request)


class Fresh:
    """The same as ``Server``, with a new interpreter for each attempt."""

    def perform(self, order: attempt.Order, log: Path) -> dict[str, Any]:
        with log.open("w") as output:
            done = subprocess.run(
                [sys.executable, "-m", f"{__package__}.attempt", order.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                timeout=LIMIT,
                check=False,
            )
        return {"status": done.returncode, "timed_out": False}


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Attributes:
        killed: Whether SIGKILL ended it.
        status: Its exit status; 0 where it returned from ``fit``.
        record: What it left, if it returned.
        trained: (epoch, batch) of each batch that it trained itself, if it returned.
        calls: Its calls that change the file system, if it returned.
    """

    killed: bool
    status: int = 0
    record: Record = field(default_factory=dict)
    trained: tuple[tuple[int, int], ...] = ()
    calls: tuple[str, ...] = ()


@dataclass
class Run:
    """Attempts of one scenario on one directory."""

    server: Server | Fresh
    scenario: str
    home: Path
    options: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    change: str = ""
    background: bool = False
    slow_disk: float = 0.0
    attempts: int = 0

    def __call__(
        self,
        kill: str | None = None,
        *,
        mode: str = "resilient",
        seed: int | str | None = None,
        **fit: Any,
    ) -> End:
        """Make an attempt, killed at ``kill`` if it gets there."""
        self.attempts += 1
        self.home.mkdir(parents=True, exist_ok=True)
        if seed is None:
            known = SCENARIOS.get(self.scenario)
            anew = not self.committed() or (known is not None and known.keeps_seed)
            seed = SEED if anew else SEED + 1000 * self.attempts
        order = attempt.Order(
            scenario=self.scenario,
            home=str(self.home),
            out=f"record-{self.attempts}",
            mode=mode,
            kill=kill,
            seed=seed if isinstance(seed, int) else None,
            fit=self.fit | fit,
            compile=self.compile,
            options=self.options,
            change=self.change,
            background=self.background,
            slow_disk=self.slow_disk,
        )
        log = self.home / f"log-{self.attempts}"
        answer = self.server.perform(order, log)
        ends = (0, KILLED, *STOPPED)
        if answer["timed_out"] or answer["status"] not in ends:
            raise AssertionError(
                f"attempt {self.attempts} of {self.scenario} ended with {answer}\n"
                f"order: {order.to_json()}\n{log.read_text()[-6000:]}"
            )
        if answer["status"] != 0:
            return End(answer["status"] == KILLED, answer["status"])
        about = json.loads((self.home / f"{order.out}.json").read_text())
        return End(
            killed=False,
            record=record.load(self.home / order.out),
            trained=tuple((epoch, batch) for epoch, batch in about["trained"]),
            calls=tuple(about["calls"]),
        )

    def committed(self) -> list[Path]:
        """Directories of the committed checkpoints."""
        found = self.home.glob("checkpoints*/step-*/manifest.json")
        return sorted(path.parent for path in found if ".tmp-" not in path.parent.name)


def assert_same(expected: Record, actual: Record, about: str = "") -> None:
    """Fail with what differs, by name."""
    lines = record.differences(expected, actual)
    if lines:
        raise AssertionError("\n  ".join([f"not the same bytes {about}", *lines]))
