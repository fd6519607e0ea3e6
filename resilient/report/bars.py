"""The timeline of attempts as bars, few enough to be drawn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from resilient.telemetry.accounting import Span

MOST_ATTEMPTS = 40
_WIDTH = 600  # bars that fit beside one another
_SEAM = 1e-3  # seconds


@dataclass(frozen=True)
class Timeline:
    """What is drawn of the attempts.

    Attributes:
        bars: Attempt by attempt.
        first: The first attempt that is drawn, from 0.
        narrowest: Seconds below which bars are drawn as part of their neighbours; 0
            if none were.
    """

    bars: Sequence[Span]
    first: int
    narrowest: float


def timeline(spans: Sequence[Span]) -> Timeline:
    """The bars of a run, of its last attempts if there are very many."""
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
    """Bars that are too narrow, side by side in one attempt."""

    spans: list[Span] = field(default_factory=list)

    def has_room(self, span: Span, narrowest: float) -> bool:
        first = self.spans[0]
        return (
            first.attempt == span.attempt
            and span.begin - first.begin < narrowest
            and span.end - span.begin < narrowest
        )

    def bar(self) -> Span:
        """One for all, named after what most of it is."""
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
    """One bar for neighbours of one part, between which a browser would draw a line."""
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
