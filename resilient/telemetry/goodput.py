"""Where a run's time went, over all attempts: productive, lost, or neither.

It is computed from ``events.jsonl`` and the last heartbeat in a checkpoint directory,
which are only read. Whatever is not an event is skipped: people read reports when
something has gone wrong, so a report must not fail because of it.

An attempt is split at its events. From "started" to "training" (the first batch is
done) it is starting, except for the seconds that "restored" and "replayed" report. From
then on it trains, validates and runs callbacks, except while saves stall it. That time
is productive until a restore goes back over it: then everything after the save of the
restored step is lost.

Measured: when an attempt started and, unless it was killed, ended; its restores,
    replays and stalls. Imports are not seen: they happen before "started", and count as
    down.

Estimated:

* the moment of a saved step: that of "saved", minus the duration of the write;
* a stall comes right after the saved step;
* an attempt that reported no end died at its last sign of life: the heartbeat, which is
    rewritten about twice a second while batches complete, or else its last event. Later
    work, such as the batch in progress, is not seen, and its time counts as down;
* the loss, if the save of the restored step is not in the events: the seconds between
    the known moments before and after it are divided in proportion to steps;
* if the clock goes back, no time passes until it catches up.

Work that a dead run will have to repeat counts as productive until the run resumes. An
attempt that ended or was preempted waits for its last write, which counts as saving.
The time between a fit that ended and the next one belongs to no part, nor to the whole.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from resilient.display import duration
from resilient.telemetry.attempts import RunLog, read_log
from resilient.telemetry.events import KILLED, Event
from resilient.telemetry.heartbeat import Beat

PARTS = (
    *("productive", "saving", "starting", "restoring", "replaying", "lost", "down"),
)


class Span(Struct):
    """Time that went into one part of the whole, without a break.

    Attributes:
        attempt: Its place among the attempts, from 0.
        part: A name from ``Goodput.parts``.
        begin: Unix seconds.
        end: Unix seconds.
        step: The step that training had reached by then.
        saved: Whether a checkpoint holds the state at its end.
    """

    attempt: int
    part: str
    begin: float
    end: float
    step: int = 0
    saved: bool = False


class AttemptReport(Struct):
    """One attempt of a process.

    Attributes:
        attempt: Its identifier in the events.
        host: Where it ran; empty if unknown.
        started: When it locked the directory, in Unix seconds.
        ended: Its last sign of life, in Unix seconds.
        outcome: How it ended. "rolled back": another process continues. "killed or
            lost": it reported no end. "unknown": nor did the last one, which may still
            be running.
        restored: The step of the checkpoint that it resumed from, if any.
        repeated: Batches after it that were trained again with the same bits; None: not
            compared.
        step: Where the run was when it ended.
    """

    attempt: str
    host: str
    started: float
    ended: float
    outcome: str = "unknown"
    restored: int | None = None
    repeated: int | None = None
    step: int = 0


@dataclass(frozen=True, repr=False)
class Goodput:
    """Where the time and the steps of a run went; times are in seconds.

    Attributes:
        parts: Seconds by part of the whole. "productive": training (with validation and
            callbacks) that survived. "saving": training that waited for a save.
            "starting": from the start of a fit to the end of its first batch.
            "restoring", in either phase: reading a checkpoint and restoring it.
            "replaying", in either phase: returning the data to its position. "lost":
            training that a restore discarded. "down": from the last sign of life of an
            attempt to the start of the next.
        steps: Trained batches that survived: where the run is.
        lost_steps: Trained batches that a restore discarded.
        postponed: Saves delayed because the previous one was still being written.
        attempts: Each attempt, oldest first.
        spans: The time spans behind the seconds, attempt by attempt.
    """

    parts: Mapping[str, float]
    steps: int
    lost_steps: int
    postponed: int
    attempts: tuple[AttemptReport, ...]
    spans: tuple[Span, ...]

    def __repr__(self) -> str:
        steps = f"{self.steps:,} steps, plus {self.lost_steps:,} lost"
        return f"<Goodput {self.share:.1%} of {duration(self.whole)}: {steps}>"

    @property
    def whole(self) -> float:
        """Total seconds: the sum of the parts."""
        return math.fsum(self.parts.values())

    @property
    def share(self) -> float:
        """The goodput: the productive share of the whole, from 0 to 1."""
        return min(1.0, self.parts["productive"] / self.whole) if self.whole else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "goodput": self.share,
            "seconds": {"whole": self.whole, **self.parts},
            "steps": {
                "trained": self.steps + self.lost_steps,
                "lost": self.lost_steps,
                "surviving": self.steps,
            },
            "postponed_saves": self.postponed,
            "attempts": [asdict(attempt) for attempt in self.attempts],
        }


def goodput(directory: str | os.PathLike[str]) -> Goodput:
    """Where the time of a checkpoint directory's run went.

    A run that was started over counts from that start. Without events, all is zero.
    """
    return account(read_log(directory))


def account(log: RunLog) -> Goodput:
    """Where the time of a run went, by what it recorded."""
    books = _Books()
    starts = [events[0].time for events in log.attempts[1:]] + [math.inf]
    for events, until in zip(log.attempts, starts, strict=False):
        books.add(events, log.beats.get(events[0].attempt), until)
    spans = sorted(
        (span for span in books.spans if span.end > span.begin),
        key=lambda span: (span.attempt, span.begin),
    )
    parts = {
        part: math.fsum(each.end - each.begin for each in spans if each.part == part)
        for part in PARTS
    }
    return Goodput(
        parts,
        steps=books.step,
        lost_steps=books.lost_steps,
        postponed=sum(each.postponed for events in log.attempts for each in events),
        attempts=tuple(books.reports),
        spans=tuple(spans),
    )


class _Books:
    """Books each second of a run once, attempt by attempt.

    Attributes:
        spans: All that is booked; what a restore discards becomes "lost".
        reports: The attempts so far.
        lost_steps: The steps that restores discarded.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.reports: list[AttemptReport] = []
        self.lost_steps = 0
        # Starting over goes back to step 0, which needs no checkpoint.
        self._trained = [Span(0, "productive", 0.0, 0.0, saved=True)]
        self._training = False
        self._until = 0.0

    @property
    def step(self) -> int:
        """Where training is: the steps that have survived so far."""
        return self._trained[-1].step

    def add(self, events: Sequence[Event], beat: Beat | None, until: float) -> None:
        """Book a whole attempt.

        Args:
            events: Its events, the first of which is "started".
            beat: Its last heartbeat.
            until: When the next attempt started, in Unix seconds; or infinity.
        """
        begin, last = events[0].time, self.reports[-1] if self.reports else None
        if last is not None and last.outcome == "unknown":
            last.outcome = KILLED
        if last is not None and last.outcome != "ended":
            number, ended = len(self.reports) - 1, last.ended
            self.spans.append(Span(number, "down", ended, max(ended, begin)))
        self._at = AttemptReport(events[0].attempt, events[0].host, begin, begin)
        self.reports.append(self._at)
        ends = [each.event for each in events if each.ends_attempt]
        if ends:
            self._at.outcome, beat = ends[-1], None
        elif events[-1].event == "rolled back to":
            self._at.outcome = "rolled back"  # another process continues
        self._training, self._until = False, max(event.time for event in events)
        if beat is not None:
            self._until = max(self._until, min(beat.time, until))
        for event in events:
            self._take(event)
        if beat is not None:
            if beat.phase == "replaying" and not self._training:
                self._spend("replaying", self._until)
            self._go_on(self._until, beat.step)
        self._go_on(self._until)
        self._at.step = self.step

    def _take(self, event: Event) -> None:
        match event.event:
            case "restored" | "rolled back to" | "replayed":
                self._go_on(event.time - event.seconds, event.from_step)
                replayed = event.event == "replayed"
                self._spend("replaying" if replayed else "restoring", event.time)
                if event.step is not None and not replayed:
                    self._go_back(event.step)
                    if not self._training:
                        self._at.restored = event.step
            case "training":
                self._go_on(event.time, event.step)
                if not self._training and self._at.restored is None:
                    self._go_back(0)
                self._training = True
                self._go_on(event.time, event.step)
            case "saved" if self._training:
                moment = event.time - event.seconds
                self._go_on(moment, event.step, saved=True)
                self._spend("saving", moment + event.stall)
            case "repeated" | "not repeated":
                self._at.repeated = event.repeated
            case "ended" | "preempted" | "failed" | "diverged":
                waits = self._training and event.event in ("ended", "preempted")
                if waits and self._trained[-1].saved and self.step == event.step:
                    self._spend("saving", event.time)
                self._go_on(event.time, event.step)

    def _go_on(
        self, until: float, step: int | None = None, *, saved: bool = False
    ) -> None:
        """Book what the attempt did until then; an earlier step changes nothing."""
        if not self._training:
            self._spend("starting", until)
            return
        reached = self.step if step is None else step
        span = self._spend("productive", until)
        span.saved, span.step = saved and reached >= self.step, max(reached, self.step)
        self._trained.append(span)

    def _spend(self, part: str, until: float) -> Span:
        """Book the time until then; none if it is booked already."""
        begin = self._at.ended
        self._at.ended = max(begin, min(until, self._until))
        self.spans.append(Span(len(self.reports) - 1, part, begin, self._at.ended))
        return self.spans[-1]

    def _go_back(self, step: int) -> None:
        """Continue from a step's checkpoint: everything after it is lost.

        If no save of that step is known, the seconds between the known moments before
        and after it are divided in proportion to steps. A step beyond the last known
        one is taken to have been reached in no time.
        """
        if step > self.step:
            now = self._at.ended
            self._trained.append(Span(0, "productive", now, now, step, saved=True))
        self.lost_steps += self.step - step
        undone = last = self._trained[-1]
        while last.step > step or (last.step == step and not last.saved):
            undone, last = self._trained.pop(), self._trained[-1]
            undone.part = "lost"
        if last.step < step:
            share = (step - last.step) / (undone.step - last.step)
            moment = undone.begin + share * (undone.end - undone.begin)
            kept = replace(undone, part="productive", end=moment, step=step, saved=True)
            undone.begin = moment
            self.spans.append(kept)
            self._trained.append(kept)
