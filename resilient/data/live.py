"""A live iterator, which keeps the batches that have not been trained yet."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras

from resilient.serialization.batches import checksum, copied, unpack
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import MalformedError

if TYPE_CHECKING:
    from resilient.data.source import SourceContext


class LiveIterator:
    """An iterator and its latest batches.

    Args:
        lock: Held while a batch is being produced.
        given: Batches that the iterator has yielded so far.
        pending: The last of these, which have not been trained.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        lock: Any,
        settings: "SourceContext",
        given: int = 0,
        pending: Iterable[Any] = (),
    ) -> None:
        self._batches = batches
        self._lock = lock
        self._overwritten = settings.overwritten
        self.given = given
        self._again = deque(pending)
        # Another backend may have prefetched where this one does not.
        most = None if settings.ahead else max(1, len(self._again))
        self.recent: deque[Any] = deque(self._again, maxlen=most)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._again:
            batch = self._again.popleft()
        else:
            with self._lock:
                batch = next(self._batches)
                self.given += 1
                self.recent.append(batch)
        if self._overwritten:
            batch = keras.tree.map_structure(copied, batch)
        return batch

    def since(self, drawn: int) -> list[Any]:
        """The batches that were yielded but not trained."""
        pending = self.given - drawn
        return list(self.recent)[-pending:] if pending else []

    def trim(self, drawn: int) -> None:
        """Forget trained batches, except the last one."""
        keep = max(1, self.given - drawn)
        while len(self.recent) > keep:
            self.recent.popleft()


def pending_of(position: DataPosition) -> list[Any]:
    """The batches that were yielded but not trained.

    Raises:
        MalformedError: Their number is wrong, or the last is not what it was.
    """
    given, packed = position.given or 0, position.pending
    if position.drawn + len(packed) != given:
        raise MalformedError(
            f"the position of the data: {position.drawn} batches were trained of "
            f"{given}, and {len(packed)} not"
        )
    batches = [unpack(batch) for batch in packed]
    if batches and checksum(batches[-1]) != position.last:
        raise MalformedError("the last batch is another one than was given")
    return batches
