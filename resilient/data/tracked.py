"""Follows the iterators over data that Python iterates, batch by batch.

Keras iterates a ``TrackedIterable`` instead of what the user passed. It counts batches,
keeps those that Keras prefetched (they go into the checkpoint) and a checksum of the
last one, and starts where a checkpoint says.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import keras

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.source import DataSource, SourceContext
from resilient.serialization import JSON
from resilient.serialization.batches import checksum, copied, pack, unpack
from resilient.serialization.position import DataPosition


class LiveIterator:
    """An iterator, and its latest batches, which have not been trained yet.

    Args:
        lock: Held while a batch is being produced.
        given: Batches that the iterator has yielded so far.
        pending: The last of these, which have not been trained.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        lock: Any,
        settings: SourceContext,
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


class TrackedIterable:
    """The iterable that Keras uses instead of the user's data."""

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self._settings = source.settings
        self._live: LiveIterator | None = None
        self._ready: LiveIterator | None = None
        # Another thread may be making a batch: wait for it.
        self.lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        with self.lock:
            live, self._ready = self._ready, None
            if live is None:
                live = LiveIterator(self.source.begin(), self.lock, self._settings)
            self._live = live
            return live

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        live = self._live
        if not drawn and (not held or live is None or live.given):
            live = None  # the next iterator does not exist yet
        source = self.source.position(live=live is not None)
        if live is None:
            return DataPosition(drawn=drawn, source=source)
        return DataPosition(
            drawn=drawn,
            source=source,
            given=live.given,
            pending=[pack(batch) for batch in live.since(drawn)],
            last=checksum(live.recent[-1]) if live.recent else None,
        )

    def resume(self, position: DataPosition) -> None:
        self.source.resume(position.source)

    def seek(self, position: DataPosition) -> None:
        pending = [unpack(batch) for batch in position.pending]
        # Between epochs, callbacks and the data may have begun the next one since.
        if position.source.get("in_epoch", True):
            self.source.resume(position.source)
        given = position.given
        if given is None:
            return
        batches, last = self.source.seek(position.source, given)
        if last is not None:
            self.source.verify(last, given, position.last)
        self._ready = LiveIterator(batches, self.lock, self._settings, given, pending)

    def on_trained(self, drawn: int) -> None:
        if self._live is not None and self._settings.ahead:
            self._live.trim(drawn)


class TrackedAdapter(Positioned):
    """Mixed into one of Keras's adapters: its positions are those of ``tracked``."""

    tracked: TrackedIterable

    def as_given(self) -> Iterable[Any]:
        """The batches as the data gives them: nothing of Keras converts them."""
        return self.tracked

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        epochs = keras_internals.generation.epochs(self)
        return replace(self.tracked.position(drawn, held=held), epochs=epochs)

    def resume(self, position: DataPosition) -> None:
        keras_internals.generation.set_epochs(self, position.epochs)
        self.tracked.resume(position)

    def seek(self, position: DataPosition) -> None:
        self.tracked.seek(position)

    def on_trained(self, drawn: int) -> None:
        self.tracked.on_trained(drawn)

    def frozen(self) -> contextlib.AbstractContextManager[Any]:
        lock: contextlib.AbstractContextManager[Any] = self.tracked.lock
        return lock

    def fingerprint(self) -> JSON:
        return self.tracked.source.fingerprint()


def lazily(tracked: TrackedIterable) -> Iterator[Any]:
    """Iterate lazily: like Keras, begin only with the first batch."""
    yield from iter(tracked)
