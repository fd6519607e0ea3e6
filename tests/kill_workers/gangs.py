"""Start attempts of several processes, kill some, and look at what they left.

A ``Run`` is a directory and the attempts on it, as in ``kill.harness``: attempts after
the first committed checkpoint get another seed than the run began with.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill import record
from kill.harness import SEED
from kill.record import Record
from support import gang
from worker import Order

HERE = Path(__file__).parent
LIMIT = 120.0  # seconds


@dataclass(frozen=True)
class End:
    """How one process of an attempt ended.

    Attributes:
        status: Its exit status, negative if a signal killed it; or ``"stopped"``.
        text: What it printed.
        record: What it left, if it returned from ``fit``.
        trained: (epoch, batch) of each batch that it trained itself, if it returned.
        calls: Its calls that change the file system, if it returned.
    """

    status: int | str
    text: str
    record: Record = field(default_factory=dict)
    trained: tuple[tuple[int, int], ...] = ()
    calls: tuple[str, ...] = ()


@dataclass
class Run:
    """Attempts of several processes on one directory."""

    home: Path
    layout: str = "data"
    count: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    background: bool = False
    attempts: int = 0

    def __call__(
        self,
        kills: dict[int, str] | None = None,
        *,
        mode: str = "resilient",
        told: dict[str, str] | None = None,
    ) -> list[End]:
        """Make an attempt; the processes that are named are killed on their way."""
        order = self.order(kills, mode)
        ended = gang.run(
            HERE / "worker.py",
            order.to_json(),
            world=self.count,
            timeout=LIMIT,
            told=told,
            ends_at_once=True,
        )
        ends = [
            End(status, text) if status != 0 else self.left(order, index, text)
            for index, (status, text) in enumerate(
                zip(ended.statuses, ended.outputs, strict=True)
            )
        ]
        unexpected = [
            index
            for index, end in enumerate(ends)
            if end.status == "too long" or (end.status != 0 and not kills)
        ]
        if unexpected:
            raise AssertionError(self.tell(ends, order))
        return ends

    def order(
        self, kills: dict[int, str] | None, mode: str, *, once: bool = False
    ) -> Order:
        """What the processes of the next attempt do; killed ``once`` in many tries."""
        self.attempts += 1
        self.home.mkdir(parents=True, exist_ok=True)
        return Order(
            home=str(self.home),
            out=f"record-{self.attempts}",
            seed=SEED + (1000 * self.attempts if self.committed() else 0),
            mode=mode,
            layout=self.layout,
            kills={str(index): point for index, point in (kills or {}).items()},
            options=self.options,
            background=self.background,
            once=str(self.home / "killed") if once else None,
        )

    def committed(self) -> list[str]:
        """Names of the committed checkpoints, in their order."""
        found = self.home.glob("checkpoints/step-*/manifest.json")
        return sorted(p.parent.name for p in found if ".tmp-" not in p.parent.name)

    def tell(self, ends: list[End], order: Order | None = None) -> str:
        """All that is known of an attempt, for a failed test."""
        lines = [f"attempt {self.attempts}: {[end.status for end in ends]}"]
        lines += [] if order is None else [order.to_json()]
        lines += [f"process {n}:\n{end.text[-3000:]}" for n, end in enumerate(ends)]
        return "\n".join(lines)

    def left(self, order: Order, index: int, text: str = "") -> End:
        """What a process left that returned from ``fit``."""
        out = self.home / f"{order.out}-{index}"
        about = json.loads(out.with_suffix(".json").read_text())
        trained = tuple((epoch, batch) for epoch, batch in about["trained"])
        return End(0, text, record.load(out), trained, tuple(about["calls"]))
