"""Describes a kind of data: its iterators, and how they return to a position."""

import contextlib
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from resilient.backends.base import Backend
from resilient.data import DataOptions
from resilient.data.shard import ShardedData
from resilient.errors import DataNotResumableError, NotSupportedError, ResilientError
from resilient.serialization import JSON
from resilient.serialization.batches import checksum
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.serialization.position import DataPosition

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceContext:
    """What a source needs to know about the fit.

    Attributes:
        backend: The backend's adapter, for random states.
        options: The user's options.
        verbose: Whether long replays show a progress bar.
        ahead: Whether Keras draws batches before it trains them.
        argument: The data's name in messages, ``"x"`` or ``"validation_data"``.
        saved: The position to resume from, if any: adapters that draw random numbers
            when they are created have to draw the same again.
        strategy: The tf.distribute strategy that Keras distributes batches with.
        claimed: Random generators that other data of this fit restores, by id.
        drawn_ahead: Random generators that data draws from in its own threads and that
            nobody else may restore: names of global ones, ids of others.
        as_given: Whether a loop iterates the data itself and gets its batches as they
            are; Keras converts them.
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
    as_given: bool = False
    replaying: Callable[[], None] = lambda: None
    share: ShardedData = field(default_factory=ShardedData)

    @property
    def overwritten(self) -> bool:
        """Whether Keras may write to the batches it is given.

        When tf.distribute splits batches from Python, TensorFlow takes over the memory
        of NumPy arrays and computes in it: gradients appear in the user's data. Seen
        under MultiWorkerMirroredStrategy, in process 0.
        """
        return getattr(self.strategy, "num_replicas_in_sync", 1) > 1


class DataSource(ABC):
    """One kind of data.

    Attributes:
        name: Its name in messages: "a torch DataLoader".
    """

    name: str
    settings: SourceContext

    @abstractmethod
    def begin(self) -> Iterator[Any]:
        """A new iterator, created as Keras would, with the same random draws."""

    @abstractmethod
    def position(self, *, live: bool) -> JSON:
        """The position after the batches yielded so far: plain values and arrays.

        Args:
            live: Whether the newest iterator continues; if not, only state that
                outlasts it.
        """

    def resume(self, position: JSON) -> None:  # noqa: B027 (nothing outlasts some)
        """Restore state that outlasts iterators. May be called twice."""

    @abstractmethod
    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        """An iterator that continues after ``given`` batches, and the last of these.

        That batch is None if it was not produced on the way. The caller restores the
        global random generators from which this draws.
        """

    @abstractmethod
    def fingerprint(self) -> JSON:
        """Identifies the data, apart from what may change between attempts."""

    @contextlib.contextmanager
    def restoring(self) -> Iterator[None]:
        """Turn exceptions that are raised while data is restored into our own.

        Raises:
            DataNotResumableError: Any other exception was raised.
        """
        try:
            yield
        except ResilientError:
            raise
        except Exception as error:
            raise DataNotResumableError(
                "The data cannot return to its position in the checkpoint: it changed, "
                "or files that it reads or writes are missing.",
                received=f"{self.argument}: {type(error).__name__}: {error}",
                hint="Restore the data to what it was, or start over with "
                'resume="never".',
            ) from error

    def require_states(self, found: Iterable[str], states: Mapping[str, Any]) -> None:
        """Check that a checkpoint has the states of the data's random generators.

        Raises:
            DataNotResumableError: Some have none.
        """
        if missing := sorted(set(found) - set(states)):
            raise DataNotResumableError(
                "The data has random generators whose states are not in the "
                "checkpoint.",
                received=f"{self.argument}: {', '.join(missing)}",
                hint="Restore the data to what it was, or start over with "
                'resume="never".',
            )

    @property
    def argument(self) -> str:
        """The data's name in messages: the argument of ``fit``, and its type."""
        return f"`{self.settings.argument}` ({self.name})"

    def verify(self, batch: Any, number: int, before: str | None) -> None:
        """Check that a batch is the same as before.

        Args:
            batch: As it is now.
            number: In its iterator, from 1.
            before: The checksum of what it was, if known.

        Raises:
            DataNotResumableError: Unless ``on_data_change="warn"``.
        """
        if before is None or checksum(batch) == before:
            return
        self.settings.options.refuse(
            "A batch that was already trained has different content now: the data "
            "changed, or is not the same each time it is iterated (unseeded random "
            "numbers, draws in parallel calls, file order, time).",
            received=f"{self.argument}: batch {number:,} of the iterator",
            hint="Use the same data as before, seed every random generator in it, and "
            "draw from each in one thread.",
        )


def skip(batches: Iterator[Any], count: int, source: DataSource) -> Any:
    """Draw ``count`` batches, with a progress bar; return the last one.

    Raises:
        DataNotResumableError: The data ended too early.
    """
    logger.info("Replaying %s batches of %s", f"{count:,}", source.name)
    # Only here: its time would be part of each start.
    from rich.console import Console
    from rich.progress import track

    steps = track(
        range(min(count, sys.maxsize)),  # the largest range
        description=f"Replaying {count:,} batches of {source.name}",
        console=Console(file=sys.stderr),
        disable=not source.settings.verbose or not count,
    )
    last = None
    for done in steps:
        source.settings.replaying()
        try:
            last = next(batches)
        except StopIteration:
            raise ended(source, count, done) from None
    return last


def plain_copy(state: Any, what: str) -> Any:
    """A copy of what a ``state_dict`` returned.

    Args:
        state: What it returned.
        what: Whose it is, for the error.

    Raises:
        NotSupportedError: It cannot be kept in a checkpoint.
    """
    arrays: dict[str, Any] = {}
    try:
        return decode(encode(state, arrays, "state"), arrays)
    except NotEncodable as error:
        raise NotSupportedError(
            f"The state_dict() of {what} cannot be saved.",
            received=str(error),
            hint="Return plain values, lists, dicts and numpy arrays.",
        ) from error


def ended(source: DataSource, count: int, done: int) -> DataNotResumableError:
    """The error for data with fewer batches than before."""
    return DataNotResumableError(
        "The data ended before the batch to resume at: it changed, or is not the "
        "same each time it is iterated.",
        received=f"{source.argument}: {done:,} batches now, at least {count:,} before",
        hint='Use the same data as before, or start over with resume="never".',
    )
