"""Determines whether an attempt brought the run further than all earlier ones.

There are two kinds of progress, for two questions. A newer checkpoint: restarting pays
off, the run gets there piece by piece. A later step than ever before: this failure is
not the previous one. Runs are identified by their checkpoint directories: a script may
have several.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gain:
    """What an attempt achieved.

    Attributes:
        step: It trained a step that no attempt had trained before.
        checkpoint: There is a newer checkpoint than ever before.
    """

    step: bool
    checkpoint: bool


class Headway:
    """Remembers how far each directory got.

    Attributes:
        steps: The last step trained in each.
    """

    def __init__(self) -> None:
        self.steps: dict[Path, int] = {}
        self._checkpoints: dict[Path, int] = {}

    def after(
        self, directory: Path | None, committed: Iterable[int], reached: Iterable[int]
    ) -> Gain:
        """Compare a finished attempt with earlier ones.

        Args:
            directory: Its checkpoint directory; None if it is not known.
            committed: Steps of the checkpoints that exist now.
            reached: Steps that it trained, as far as known.
        """
        if directory is None:
            return Gain(step=False, checkpoint=False)
        newest, step = max(committed, default=-1), max(reached, default=-1)
        # Checkpoints left after the first attempt may be older, so it gains none: the
        # rules count only restarts. A run that begins later gained everything that it
        # has.
        first = -1 if self._checkpoints else newest
        newest_before = self._checkpoints.get(directory, first)
        step_before = self.steps.get(directory, -1)
        self._checkpoints[directory] = max(newest_before, newest)
        self.steps[directory] = max(step_before, step)
        return Gain(step=step > step_before, checkpoint=newest > newest_before)
