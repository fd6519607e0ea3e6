"""The timeline of attempts, as few enough bars to draw."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from resilient.telemetry.accounting import Span

MOST_ATTEMPTS = 40
_WIDTH = 600  # bars that fit side by side
_SEAM = 1e-3  # seconds


@dataclass(frozen=True)
class Timeline:
    """The bars drawn for the attempts.

    Attributes:
        bars: The bars, attempt by attempt.
        first: The first attempt drawn, from 0.
        narrowest: Bars shorter than this, in seconds, are merged with their
            neighbours; 0 if none were.
    """

    bars: Sequence[Span]
    first: int
    narrowest: float


def timeline(spans: Sequence[Span]) -> Timeline:
    """The bars of a run; only the last attempts if there are very many."""
    count = max((span.attempt for span in spans), default=-1) + 1
    first = max(0, count - MOST_ATTEMPTS)
    drawn = [span for span in spans if span.attempt >= first]
    if not drawn:
        return Timeline((), first, 0.0)
    whole = max(span.end for span in drawn) - min(span.begin for span in drawn)
    narrowest = whole / _WIDTH
    if all(span.end - span.begin >= narrowest for span in drawn):
        return Timeline(list(_without_seams(drawn)), first, 0.0)
    bars = _without_seams(_joined(drawn, narrowest))
    return Timeline(list(bars), first, narrowest)


@dataclass
class _Heap:
    """Adjacent bars of one attempt that are too narrow to draw."""

    spans: list[Span] = field(default_factory=list)

    def has_room(self, span: Span, narrowest: float) -> bool:
        first = self.spans[0]
        return (
            first.attempt == span.attempt
            and span.begin - first.begin < narrowest
            and span.end - span.begin < narrowest
        )

    def bar(self) -> Span:
        """One bar for all, named after the part with the most time."""
        seconds: dict[str, float] = {}
        for span in self.spans:
            seconds[span.part] = seconds.get(span.part, 0.0) + span.end - span.begin
        part = max(seconds, key=lambda name: seconds[name])
        first, last = self.spans[0], self.spans[-1]
        return Span(first.attempt, part, first.begin, max(first.end, last.end))


def _joined(spans: Iterable[Span], narrowest: float) -> Iterator[Span]:
    heap = _Heap()
    for span in spans:
        if heap.spans and not heap.has_room(span, narrowest):
            yield heap.bar()
            heap = _Heap()
        heap.spans.append(span)
    if heap.spans:
        yield heap.bar()


def _without_seams(spans: Iterable[Span]) -> Iterator[Span]:
    """Merge adjacent bars of the same part, so that browsers draw no line between."""
    last: Span | None = None
    for span in spans:
        if last is None:
            last = span
        elif (last.attempt, last.part) == (span.attempt, span.part) and (
            span.begin - last.end < _SEAM
        ):
            last = replace(last, end=max(last.end, span.end))
        else:
            yield last
            last = span
    if last is not None:
        yield last
