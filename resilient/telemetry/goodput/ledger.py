"""Seconds of training, booked by the steps that they led to, of which some are undone.

Pure arithmetic: it knows neither events nor clocks.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class _Piece:
    step: int  # where it led to; from the step of the piece before
    seconds: float
    saved: bool  # the state at its end is a checkpoint


class Ledger:
    """What training on a run took, as it goes on and back.

    Attributes:
        lost: Seconds of training that were gone back over.
        lost_steps: Steps that were.
    """

    def __init__(self) -> None:
        # To start anew is to go back to step 0, which needs no checkpoint.
        self._pieces = [_Piece(0, 0.0, saved=True)]
        self.lost = 0.0
        self.lost_steps = 0

    @property
    def step(self) -> int:
        """Where training is: the steps that survived so far."""
        return self._pieces[-1].step

    @property
    def productive(self) -> float:
        """Seconds of training that survived so far."""
        return math.fsum(piece.seconds for piece in self._pieces)

    def is_saved(self, step: int | None) -> bool:
        """Whether training is at this step, and has done nothing since its save."""
        return self._pieces[-1].step == step and self._pieces[-1].saved

    def reach(self, step: int, seconds: float, *, saved: bool = False) -> None:
        """Train up to a step. One behind where training is tells nothing new."""
        saved = saved and step >= self.step
        self._pieces.append(_Piece(max(step, self.step), seconds, saved))

    def go_back(self, step: int) -> None:
        """Continue from the checkpoint of a step: what came after it is lost.

        Where no save of that step is known, the seconds between the moments that are
        known before and after it are shared out by steps. A step ahead of where
        training was known to be was reached in no known time.
        """
        if step > self.step:
            self.reach(step, 0.0, saved=True)
            return
        self.lost_steps += self.step - step
        undone = _Piece(self.step, 0.0, saved=False)
        while not self._stands(self._pieces[-1], step):
            self.lost += undone.seconds
            undone = self._pieces.pop()
        kept, before = 0.0, self.step
        if before < step:
            kept = undone.seconds * ((step - before) / (undone.step - before))
            self.reach(step, kept, saved=True)
        self.lost += undone.seconds - kept

    @staticmethod
    def _stands(piece: _Piece, step: int) -> bool:
        return piece.step < step or (piece.step == step and piece.saved)
