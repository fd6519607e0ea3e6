"""Returning training data to a position: one module or folder per source.

Beside them: ``source`` (what a kind of data implements), ``live``, ``tracked_adapter``,
``select`` (which kind it is), ``inputs`` (all data of one fit), ``replay``, ``shard``.

Each has a data adapter that Keras's ``fit`` uses instead of its own. It yields the same
batches in the same order, and its position can be read and restored. Data without a
position is refused. Nothing here knows checkpoints or models. ``training`` imports it.
"""

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from resilient.serialization import JSON
from resilient.serialization.position import DataPosition

OnDataChange = Literal["raise", "warn"]


@dataclass(frozen=True)
class DataOptions:
    """What the user wants to happen to the data on a resume.

    Attributes:
        on_change: ``"raise"`` refuses data that changed; ``"warn"`` accepts it.
        replay: Whether to draw again from the start instead of saving iterators.
    """

    on_change: OnDataChange = "raise"
    replay: bool = False


class Positioned(ABC):
    """What the epoch iterator needs from a data adapter."""

    @abstractmethod
    def position(self, drawn: int, *, held: bool) -> DataPosition:
        """Where the data is.

        Args:
            drawn: Batches of the live iterator that were trained. Where Keras looks
                ahead, more may have been drawn.
            held: Whether Keras continues with that iterator.
        """

    def prepare(self, position: DataPosition) -> None:  # noqa: B027 (few need it)
        """Raise now what ``resume`` or ``seek`` would raise too late."""

    @abstractmethod
    def resume(self, position: DataPosition) -> None:
        """Restore what outlasts iterators, whether or not one continues."""

    @abstractmethod
    def seek(self, position: DataPosition) -> None:
        """Let the next iterator continue from ``position``."""

    @abstractmethod
    def fingerprint(self) -> JSON:
        """Equal for two runs on the same data."""

    def before_iterator(self) -> None:  # noqa: B027 (few have something to do)
        """Called just before each training iterator is made."""

    def wrap(self, iterable: Any) -> Any:
        """The iterable that Keras is about to iterate, possibly wrapped."""
        return iterable

    def on_trained(self, drawn: int) -> None:  # noqa: B027 (few have something to do)
        """This many batches of the live iterator were trained."""

    def frozen(self) -> contextlib.AbstractContextManager[Any]:
        """While entered, no other thread draws from the data."""
        return contextlib.nullcontext()
