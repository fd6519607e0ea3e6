"""Iterators over a kind of data, followed batch by batch.

Keras iterates a ``TrackedIterable`` instead of what the user passed. It counts batches,
keeps those that Keras drew ahead of training (they go into the checkpoint) and a
checksum of the last one, and starts where a checkpoint says. A ``DataSource`` knows how
to make iterators of one kind of data, and how to return one to a position.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras

from resilient.backends.base import Backend
from resilient.data import DataOptions
from resilient.data.shard import ShardedData
from resilient.errors import DataNotResumableError, warn_not_exact
from resilient.serialization import JSON
from resilient.serialization.batches import checksum, copied, pack, unpack
from resilient.serialization.position import BatchMark, DataPosition


@dataclass(frozen=True)
class SourceContext:
    """What a source needs to know about the fit.

    Attributes:
        backend: The backend's adapter, for random states.
        options: The user's.
        verbose: Whether long replays show a progress bar.
        ahead: Whether Keras draws batches before it trains them.
        argument: The data's name in messages, ``"x"`` or ``"validation_data"``.
        saved: The position to resume from, if any: adapters that draw random numbers
            when they are made have to draw the same again.
        strategy: The tf.distribute strategy that Keras distributes batches with.
        claimed: Random generators that other data of this fit restores, by id.
        drawn_ahead: Random generators that data draws from in its own threads, which
            nobody else may restore: names of global ones, ids of others.
        replaying: Called for each batch that is replayed; may raise to give up.
        share: The part of the data that this process trains.
    """

    backend: Backend
    options: DataOptions = field(default_factory=DataOptions)
    verbose: bool = True
    ahead: bool = False
    argument: str = "x"
    saved: DataPosition | None = None
    strategy: Any = None
    claimed: dict[int, Any] = field(default_factory=dict)
    drawn_ahead: set[str | int] = field(default_factory=set)
    replaying: Callable[[], None] = lambda: None
    share: ShardedData = field(default_factory=ShardedData)

    @property
    def overwritten(self) -> bool:
        """Whether Keras may write to the batches it is given.

        When tf.distribute splits batches that came from Python, TensorFlow reuses the
        memory of NumPy arrays as its own and computes in it: gradients appear in the
        user's data. Seen under MultiWorkerMirroredStrategy, in process 0.
        """
        return getattr(self.strategy, "num_replicas_in_sync", 1) > 1


class DataSource(ABC):
    """One kind of data.

    Attributes:
        name: In messages: "a torch DataLoader".
    """

    name: str
    settings: SourceContext

    @abstractmethod
    def begin(self) -> Iterator[Any]:
        """A new iterator, made as Keras would, with the same random draws."""

    @abstractmethod
    def position(self, *, live: bool) -> JSON:
        """The position after the batches given so far: plain values and arrays.

        Args:
            live: Whether the newest iterator continues; if not, only what outlasts it.
        """

    def resume(self, position: JSON) -> None:  # noqa: B027 (nothing outlasts some)
        """Restore what outlasts iterators. May be called twice for one position."""

    @abstractmethod
    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        """An iterator that continues after ``given`` batches, and the last of these.

        That batch is None if it was not produced on the way. The caller restores the
        global random generators that this draws from.
        """

    def last_batch(self) -> JSON:
        """What it takes to remake the newest iterator's last batch.

        Empty if that costs more than the one batch, or might give a different one.
        """
        return {}

    def remake_last_batch(self, position: JSON, last: JSON) -> Any:
        """The last batch of an iterator that ended; None if it cannot be remade.

        Called after ``resume``; may change global random generators, and nothing else.

        Args:
            position: What ``position`` returned.
            last: What ``last_batch`` returned; not empty.
        """
        return None

    @abstractmethod
    def fingerprint(self) -> JSON:
        """Identifies the data, without what may change between attempts."""

    @property
    def argument(self) -> str:
        """The data in messages: the argument of ``fit``, and what was passed."""
        return f"`{self.settings.argument}` ({self.name})"

    def verify(self, batch: Any, before: BatchMark) -> None:
        """Check that a batch is the one that was drawn before.

        Raises:
            DataNotResumableError: Unless ``on_data_change="warn"``.
        """
        if before.last is None or checksum(batch) == before.last:
            return
        if self.settings.options.on_change == "warn":
            warn_not_exact(
                "the data came back different: it was changed, or it is not the same "
                "each time it is iterated. Training goes on with what comes now",
                [f"{self.argument}: batch {before.given} of the iterator"],
            )
            return
        raise DataNotResumableError(
            "A batch that was already trained has different content now: the data "
            "changed, or is not deterministic (unseeded random numbers, file "
            "order, time).",
            received=f"{self.argument}: another batch {before.given:,} of the iterator",
            hint="Make the data what it was, give every random generator in it a seed, "
            'or pass on_data_change="warn" to go on with what comes now.',
        )


class TrackedIterable:
    """What Keras iterates instead of the user's data."""

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self._settings = source.settings
        self._live: _LiveIterator | None = None
        self._ready: _LiveIterator | None = None
        # The last batch of the iterator that ended last: its number and checksum.
        self._ended: BatchMark | None = None
        self._unchecked = True
        # Another thread may be making a batch: wait for it.
        self.lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        with self.lock:
            self._note_end()
            live, self._ready = self._ready, None
            if live is None:
                live = _LiveIterator(self.source.begin(), self.lock, self._settings)
            self._live = live
            return live

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        live = self._live
        if not drawn and (not held or live is None or live.given):
            live = None  # the next iterator is not made yet
        source = self.source.position(live=live is not None)
        if live is None:
            self._note_end()
            return DataPosition(drawn=drawn, source=source, ended=self._ended)
        return DataPosition(
            drawn=drawn,
            source=source,
            given=live.given,
            pending=[pack(batch) for batch in live.since(drawn)],
            last=checksum(live.recent[-1]) if live.recent else None,
        )

    def _note_end(self) -> None:
        """Keras also makes iterators that it never draws from."""
        live = self._live
        if live is not None and live.recent:
            last, again = checksum(live.recent[-1]), self.source.last_batch()
            self._ended = BatchMark(given=live.given, last=last, again=again)

    def resume(self, position: DataPosition) -> None:
        self.source.resume(position.source)
        ended = self._ended = position.ended
        if ended is None or not ended.again or not self._unchecked:
            return
        self._unchecked = False
        last = self.source.remake_last_batch(position.source, ended.again)
        if last is not None:
            self.source.verify(last, ended)

    def seek(self, position: DataPosition) -> None:
        # Between epochs, callbacks and the data may have begun the next one since.
        if position.source.get("in_epoch", True):
            self.source.resume(position.source)
        given = position.given
        if given is None:
            return
        batches, last = self.source.seek(position.source, given)
        if last is not None:
            self.source.verify(last, BatchMark(given=given, last=position.last))
        pending = [unpack(batch) for batch in position.pending]
        self._ready = _LiveIterator(batches, self.lock, self._settings, given, pending)

    def on_trained(self, drawn: int) -> None:
        if self._live is not None and self._settings.ahead:
            self._live.trim(drawn)


class _LiveIterator:
    """An iterator and its latest batches.

    Args:
        lock: Held while a batch is made.
        given: Batches that the iterator gave before.
        pending: The last of these, which were not trained.
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
        most = None if settings.ahead else 1
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
        """The batches that were given and not trained."""
        pending = self.given - drawn
        return list(self.recent)[-pending:] if pending else []

    def trim(self, drawn: int) -> None:
        """Forget what was trained, except the last batch."""
        keep = max(1, self.given - drawn)
        while len(self.recent) > keep:
            self.recent.popleft()


def lazily(tracked: TrackedIterable) -> Iterator[Any]:
    """Iterate, but begin only with the first batch, as Keras does."""
    yield from iter(tracked)
