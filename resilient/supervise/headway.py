"""Whether an attempt brought the run further than all before it.

Two kinds of progress, for two questions. A newer checkpoint: restarting pays, the run
gets there piece by piece. A later step than ever before: this failure is not the one
of last time. Runs are told apart by their checkpoint directories: a script may have
several.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Gain:
    """What is new after an attempt.

    Attributes:
        step: It trained a step that no attempt had trained.
        checkpoint: It committed a checkpoint later than all others.
    """

    step: bool
    checkpoint: bool


class Headway:
    """Remembers how far each directory got."""

    def __init__(self) -> None:
        self.steps: dict[Path, int] = {}
        self._checkpoints: dict[Path, int] = {}

    def after(
        self,
        directory: Path | None,
        committed: Sequence[int],
        events: Sequence[Mapping[str, Any]],
        step: int | None,
    ) -> Gain:
        """Compare an attempt that is over with those before.

        Args:
            directory: Its checkpoint directory; None if it is not known.
            committed: Steps of the checkpoints that are there now.
            events: What the attempt wrote to ``events.jsonl``.
            step: The last step that its heartbeat told of.
        """
        if directory is None:
            return Gain(step=False, checkpoint=False)
        steps = [event for event in events if isinstance(event.get("step"), int)]
        saved = [event["step"] for event in steps if event.get("event") == "saved"]
        # Of checkpoints that were there before our first attempt nothing is its merit.
        there = committed if directory in self._checkpoints else saved
        reached = [event["step"] for event in steps]
        reached += [] if step is None else [step]
        self._checkpoints.setdefault(directory, -1)
        self.steps.setdefault(directory, -1)
        made = Gain(
            step=max(reached, default=-1) > self.steps[directory],
            checkpoint=max([*there, *saved], default=-1) > self._checkpoints[directory],
        )
        self._checkpoints[directory] = max(
            self._checkpoints[directory], *committed, *saved, -1
        )
        self.steps[directory] = max(self.steps[directory], *reached, -1)
        return made
