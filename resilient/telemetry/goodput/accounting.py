"""Cuts one attempt at its events, and books each piece of its time."""

from dataclasses import dataclass
from typing import Literal, cast

from resilient.telemetry.goodput.attempts import AttemptLog, Event
from resilient.telemetry.goodput.ledger import Ledger

# "unknown": the last attempt has no last word; it may be running.
Outcome = Literal[
    "ended", "preempted", "failed", "diverged", "rolled back", "died", "unknown"
]


@dataclass
class TimeSpent:
    """Seconds that were not training."""

    saving: float = 0.0
    starting: float = 0.0
    restoring: float = 0.0
    replaying: float = 0.0


class Accounting:
    """Goes through an attempt; time only goes on.

    Args:
        attempt: The attempt.
        ledger: Where its training is booked, after that of the attempts before.
        spent: Where the rest is.

    Attributes:
        now: Up to when time is booked, Unix seconds.
        outcome: How the attempt ended, as far as it said so.
        restored: The step that it was resumed from, if it was.
    """

    def __init__(self, attempt: AttemptLog, ledger: Ledger, spent: TimeSpent) -> None:
        self.now = attempt.started
        self.outcome: Outcome | None = None
        self.restored: int | None = None
        self._attempt, self._ledger, self._spent = attempt, ledger, spent
        self._training = False
        self._stall = 0.0  # of saves, not yet taken from the time after them

    def go(self, until: float) -> None:
        """Book the whole attempt.

        Args:
            until: When the next one started, Unix seconds; or infinity.
        """
        for happened in self._attempt.happened:
            self._take(happened)
        last = max([self.now, *(one.time for one in self._attempt.happened)])
        sign = self._attempt.sign
        if sign is not None and self.outcome is None:
            last = max(last, min(sign.time, until))
            if sign.phase == "replaying" and not self._training:
                self._spent.replaying += self._pass(last)
            self._go_on(last, sign.step)
        self._go_on(last)
        kinds = [one.kind for one in self._attempt.happened]
        if self.outcome is None and kinds[-1:] == ["rolled back to"]:
            self.outcome = "rolled back"  # another process goes on

    def _take(self, happened: Event) -> None:
        match happened.kind:
            case "restored" | "rolled back to":
                self._go_on(happened.time - happened.seconds, happened.from_step)
                self._spent.restoring += self._pass(happened.time)
                self._go_back(happened.step)
            case "replayed":
                self._go_on(happened.time - happened.seconds)
                self._spent.replaying += self._pass(happened.time)
            case "training":
                self._go_on(happened.time, happened.step)
                self._begin()
                self._go_on(happened.time, happened.step)
            case "saved":
                self._save(happened)
            case "ended" | "preempted" | "failed" | "diverged":
                self._stop(happened)

    def _save(self, saved: Event) -> None:
        self._begin_if_beyond(saved.step)
        if self._training:
            began = saved.time - saved.seconds
            self._go_on(began, saved.step, saved=True)
            self._stall += saved.stall
        else:
            self._go_on(saved.time - saved.stall)
            self._spent.saving += self._pass(saved.time)

    def _stop(self, word: Event) -> None:
        self._begin_if_beyond(word.step)
        stops = self._training and word.kind in ("ended", "preempted")
        if stops and self._ledger.is_saved(word.step):
            self._spent.saving += self._pass(word.time)
        self._go_on(word.time, word.step)
        if word.last_word:
            self.outcome = cast(Outcome, word.kind)

    def _go_back(self, step: int | None) -> None:
        if step is None:
            return
        self._ledger.go_back(step)
        if not self._training:
            self.restored = step

    def _begin(self) -> None:
        """What follows is training: anew, if nothing was restored."""
        if not self._training and self.restored is None:
            self._ledger.go_back(0)
        self._training = True

    def _begin_if_beyond(self, step: int | None) -> None:
        """Without an event "training" (old, or torn), a new step is a sign of it."""
        if step is not None and step > (self.restored or 0):
            self._begin()

    def _go_on(
        self, until: float, step: int | None = None, *, saved: bool = False
    ) -> None:
        """Book what the attempt did until then, and came to."""
        seconds = self._pass(until)
        if not self._training:
            self._spent.starting += seconds
            return
        stalled = min(self._stall, seconds)
        self._stall -= stalled
        self._spent.saving += stalled
        at = self._ledger.step if step is None else step
        self._ledger.reach(at, seconds - stalled, saved=saved)

    def _pass(self, until: float) -> float:
        """Seconds until then, none if that is over; they are booked once only."""
        seconds = max(0.0, until - self.now)
        self.now = max(self.now, until)
        return seconds
