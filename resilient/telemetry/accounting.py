"""Splits a run's attempts at their events, and books every second exactly once.

Pure arithmetic on events that match their schema. ``goodput`` reads the events and
defines what the parts mean.
"""

import math
from collections.abc import Sequence
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from resilient.telemetry.event import Event
from resilient.telemetry.heartbeat import Beat
from resilient.telemetry.packed import Packed

# "unknown": the last attempt reported no end; it may be running.
Outcome = Literal[
    "ended", "preempted", "failed", "diverged", "rolled back", "died", "unknown"
]


class Span(Struct, frozen=True, gc=False):
    """Time that went into one part of the whole, without a break.

    Attributes:
        attempt: Its place among the attempts, from 0.
        part: A name from ``Goodput.parts``.
        begin: Unix seconds.
        end: Unix seconds.
    """

    attempt: int
    part: str
    begin: float
    end: float


class _Piece(Struct, frozen=True, gc=False):
    """Seconds of training up to a step, from the step of the previous piece."""

    step: int
    seconds: float
    saved: bool  # a checkpoint holds the state at its end
    attempt: int = 0
    begin: float = 0.0  # Unix seconds

    def span(self, part: str, since: float = 0.0) -> Span:
        """Its time span, without the first ``since`` seconds."""
        end = self.begin + self.seconds
        return Span(self.attempt, part, self.begin + since, end)


class Ledger:
    """The seconds of a run, as training advances and goes back.

    Attributes:
        spent: Seconds that were not training, by category.
        lost: Seconds of training that a restore discarded.
        lost_steps: Steps that a restore discarded.
        attempt: Which attempt is booked, from 0.
    """

    def __init__(self) -> None:
        # Starting over goes back to step 0, which needs no checkpoint.
        self._pieces = [_Piece(0, 0.0, saved=True)]
        self._spans = Packed(Span)
        not_training = ("saving", "starting", "restoring", "replaying")
        self.spent = dict.fromkeys(not_training, 0.0)
        self.lost = 0.0
        self.lost_steps = 0
        self.attempt = 0

    @property
    def step(self) -> int:
        """Where training is: the steps that have survived so far."""
        return self._pieces[-1].step

    @property
    def productive(self) -> float:
        """Seconds of training that have survived so far."""
        return math.fsum(piece.seconds for piece in self._pieces)

    def spans(self) -> list[Span]:
        """The time spans of these seconds, attempt by attempt."""
        productive = (piece.span("productive") for piece in self._pieces)
        found = [span for span in (*self._spans, *productive) if span.end > span.begin]
        return sorted(found, key=lambda span: (span.attempt, span.begin))

    def is_saved(self, step: int | None) -> bool:
        """Whether training is at this step and has done nothing since saving it."""
        return self._pieces[-1].step == step and self._pieces[-1].saved

    def spend(self, part: str, begin: float, seconds: float) -> None:
        """Do something other than training."""
        self.spent[part] += seconds
        self._spans.append(Span(self.attempt, part, begin, begin + seconds))

    def reach(
        self, step: int, begin: float, seconds: float, *, saved: bool = False
    ) -> None:
        """Train up to a step; an earlier step leaves training where it is."""
        saved = saved and step >= self.step
        reached = max(step, self.step)
        self._pieces.append(_Piece(reached, seconds, saved, self.attempt, begin))

    def go_back(self, step: int) -> None:
        """Continue from a step's checkpoint: everything after it is lost.

        If no save of that step is known, the seconds between the known moments before
        and after it are divided in proportion to steps. A step beyond the last known
        one is taken to have been reached in no time.
        """
        if step > self.step:
            self.reach(step, 0.0, 0.0, saved=True)
            return
        self.lost_steps += self.step - step
        undone = _Piece(self.step, 0.0, saved=False)
        while not self._survives(self._pieces[-1], step):
            self._lose(undone)
            undone = self._pieces.pop()
        kept, before = 0.0, self.step
        if before < step:
            kept = undone.seconds * ((step - before) / (undone.step - before))
            self._pieces.append(replace(undone, step=step, seconds=kept, saved=True))
        self._lose(undone, but=kept)

    def _lose(self, piece: _Piece, but: float = 0.0) -> None:
        """Count a piece as lost, except for its first ``but`` seconds."""
        self.lost += piece.seconds - but
        self._spans.append(piece.span("lost", but))

    @staticmethod
    def _survives(piece: _Piece, step: int) -> bool:
        return piece.step < step or (piece.step == step and piece.saved)


class Accounting:
    """Books one attempt.

    Args:
        started: When it started, in Unix seconds.
        ledger: The books, which already contain earlier attempts.

    Attributes:
        now: The time up to which time is booked, in Unix seconds; it never goes back.
        outcome: How the attempt ended, if its events say.
        restored: The step that it resumed from, if any.
        repeated: Batches that it trained again with the same bits, if it compared them.
        postponed: How many of its saves were postponed.
    """

    def __init__(self, started: float, ledger: Ledger) -> None:
        self.now = started
        self.outcome: Outcome | None = None
        self.restored: int | None = None
        self.repeated: int | None = None
        self.postponed = 0
        self._ledger = ledger
        self._training = False
        self._stall = 0.0  # stalls of saves, not yet deducted from the time after them

    def book(self, events: Sequence[Event], sign: Beat | None, until: float) -> None:
        """Book the whole attempt.

        Args:
            events: Its events.
            sign: Its last heartbeat.
            until: When the next attempt started, in Unix seconds; or infinity.
        """
        last = self.now
        for event in events:
            self._take(event)
            self.postponed += event.postponed
            last = max(last, event.time)
        last = max(last, self.now)
        if sign is not None and self.outcome is None:
            last = max(last, min(sign.time, until))
            if sign.phase == "replaying" and not self._training:
                self._spend("replaying", last)
            self._go_on(last, sign.step)
        self._go_on(last)
        if self.outcome is None and events[-1].event == "rolled back to":
            self.outcome = "rolled back"  # another process continues

    def _take(self, event: Event) -> None:
        match event.event:
            case "restored" | "rolled back to":
                self._go_on(event.time - event.seconds, event.from_step)
                self._spend("restoring", event.time)
                self._go_back(event.step)
            case "replayed":
                self._go_on(event.time - event.seconds)
                self._spend("replaying", event.time)
            case "training":
                self._go_on(event.time, event.step)
                self._begin()
                self._go_on(event.time, event.step)
            case "saved":
                self._save(event)
            case "repeated" | "not repeated":
                self.repeated = event.repeated
            case "ended" | "preempted" | "failed" | "diverged":
                self._stop(event)

    def _save(self, event: Event) -> None:
        if self._training:
            self._go_on(event.time - event.seconds, event.step, saved=True)
            self._stall += event.stall
        else:  # a finished run, saved again
            self._go_on(event.time - event.stall)
            self._spend("saving", event.time)

    def _stop(self, event: Event) -> None:
        waits = self._training and event.event in ("ended", "preempted")
        if waits and self._ledger.is_saved(event.step):
            self._spend("saving", event.time)
        self._go_on(event.time, event.step)
        if event.is_last_word:
            self.outcome = cast(Outcome, event.event)

    def _go_back(self, step: int | None) -> None:
        if step is None:
            return
        self._ledger.go_back(step)
        if not self._training:
            self.restored = step

    def _begin(self) -> None:
        """Training starts here: from step 0, if nothing was restored."""
        if not self._training and self.restored is None:
            self._ledger.go_back(0)
        self._training = True

    def _go_on(
        self, until: float, step: int | None = None, *, saved: bool = False
    ) -> None:
        """Book what the attempt did until then, and the step it reached."""
        if not self._training:
            self._spend("starting", until)
            return
        begin, seconds = self._pass(until)
        stalled = min(self._stall, seconds)
        self._stall -= stalled
        self._ledger.spend("saving", begin, stalled)
        reached = self._ledger.step if step is None else step
        begin += stalled
        self._ledger.reach(reached, begin, seconds - stalled, saved=saved)

    def _spend(self, part: str, until: float) -> None:
        self._ledger.spend(part, *self._pass(until))

    def _pass(self, until: float) -> tuple[float, float]:
        """The begin and length of the time until then; length 0 if already booked."""
        begin, self.now = self.now, max(self.now, until)
        return begin, self.now - begin
