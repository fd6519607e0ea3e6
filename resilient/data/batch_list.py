"""A list of batches that a loop iterates over: its position is an index.

Keras's ``fit`` takes a list to be arrays, so this is only for loops.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypedDict

from resilient.data.source import DataSource, SourceContext
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.serialization import JSON
from resilient.serialization.schema import Count, MalformedError

_KIND = "list"


class BatchList(TrackedAdapter):
    """Stands in for a Keras adapter; Keras has none for lists of batches."""

    def __init__(self, batches: list[Any], settings: SourceContext) -> None:
        self.num_batches = len(batches)
        self.tracked = TrackedIterable(_ListSource(batches, settings))

    def on_epoch_begin(self) -> None:
        """Nothing: a list does not change then."""

    def on_epoch_end(self) -> None:
        """Nothing, here either."""


class _Position(TypedDict):
    kind: Literal["list"]


class _Last(TypedDict):
    index: Count


class _ListSource(DataSource):
    """A list of batches, each yielded as it is."""

    name = "a list of batches"
    schema = _Position
    schema_of_last = _Last

    def __init__(self, batches: list[Any], settings: SourceContext) -> None:
        self.settings = settings
        self._batches = batches
        self._last = 0

    def begin(self) -> Iterator[Any]:
        return self._from(0)

    def _from(self, first: int) -> Iterator[Any]:
        for index in range(first, len(self._batches)):
            self._last = index
            yield self._batches[index]

    def position(self, *, live: bool) -> JSON:
        return {"kind": _KIND}

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        last = self._at(given - 1) if given else None
        return self._from(given), last

    def last_batch(self) -> JSON:
        return {"index": self._last}

    def remake_last_batch(self, position: JSON, last: JSON) -> Any:
        return self._at(last["index"])

    def _at(self, index: int) -> Any:
        if index >= len(self._batches):
            raise MalformedError(f"batch {index} of a list of {len(self._batches)}")
        return self._batches[index]

    def fingerprint(self) -> JSON:
        return {"kind": _KIND, "batches": len(self._batches)}
