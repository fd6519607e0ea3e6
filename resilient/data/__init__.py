"""Returns training data to a position: one module or folder per source.

Shared modules: ``source`` (what a kind of data implements), ``tracked`` (iterators that
Python draws from), ``draws`` (from shared random generators), ``select`` (which kind it
is), ``inputs`` (all data of one fit), ``shard``.

Each source has a data adapter that Keras's ``fit`` uses instead of its own. It yields
the same batches in the same order, and its position can be read and restored. Data
without a position is refused. Nothing here knows about checkpoints or models.
``training`` imports it.
"""

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from resilient.errors import DataNotResumableError, warn_not_exact
from resilient.serialization import JSON
from resilient.serialization.position import DataPosition

OnDataChange = Literal["raise", "warn"]


@dataclass
class DataOptions:
    """The user's options for data on a resume, and whether data that changed came.

    Attributes:
        on_change: ``"raise"`` refuses data that changed; ``"warn"`` accepts it.
        replay: Whether to replay from the start instead of saving iterators.
        changed: Whether data that changed was accepted.
    """

    on_change: OnDataChange = "raise"
    replay: bool = False
    changed: bool = field(default=False, init=False)

    def refuse(self, problem: str, *, received: str, hint: str) -> None:
        """Raise that the data changed, or warn that training continues with it.

        Raises:
            DataNotResumableError: Unless ``on_data_change="warn"``.
        """
        if self.on_change == "warn":
            self.changed = True
            what = "training continues with data that is not as before"
            warn_not_exact(what, [f"{problem} {received}"])
            return
        hint += ' Or pass on_data_change="warn" to continue with the new data.'
        raise DataNotResumableError(problem, received=received, hint=hint)


class Positioned(ABC):
    """The interface of a data adapter with a position, for the epoch iterator."""

    @abstractmethod
    def position(self, drawn: int, *, held: bool) -> DataPosition:
        """Where the data is.

        Args:
            drawn: Trained batches of the live iterator. If Keras prefetches, more may
                have been drawn.
            held: Whether Keras continues with that iterator.
        """

    @abstractmethod
    def resume(self, position: DataPosition) -> None:
        """Restore the state that outlasts iterators, whether or not one continues."""

    @abstractmethod
    def seek(self, position: DataPosition) -> None:
        """Make the next iterator continue from ``position``."""

    @abstractmethod
    def fingerprint(self) -> JSON:
        """Equal for two runs on the same data."""

    @property
    def sure_length(self) -> Any:
        """How many batches each iterator has; None unless that is certain."""
        return getattr(self, "num_batches", None)

    def before_iterator(self) -> None:  # noqa: B027 (few have something to do)
        """Called just before each training iterator is created."""

    def wrap(self, iterable: Any) -> Any:
        """The iterable that Keras is about to iterate, possibly wrapped."""
        return iterable

    def on_trained(self, drawn: int) -> None:  # noqa: B027 (few have something to do)
        """Note that this many batches of the live iterator were trained."""

    def frozen(self) -> contextlib.AbstractContextManager[Any]:
        """While entered, no other thread draws from the data."""
        return contextlib.nullcontext()
