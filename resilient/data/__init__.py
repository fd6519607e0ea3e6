"""Getting a source of training data back to a position: one module per source.

Each has a data adapter that Keras's ``fit`` takes in place of its own; it gives the
same batches in the same order, and can tell and take a position. What has no position
is refused. It knows neither checkpoints nor models. ``training`` imports it.
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
    """What the user wants of the data when a run resumes.

    Attributes:
        on_change: ``"raise"`` refuses data that comes back different; ``"warn"`` says
            so and goes on with what comes.
        replay: Whether to keep no state of iterators, but to draw again from the start.
    """

    on_change: OnDataChange = "raise"
    replay: bool = False


class Positioned(ABC):
    """What the epoch iterator needs of a data adapter."""

    @abstractmethod
    def position(self, drawn: int, *, held: bool) -> DataPosition:
        """Where the data is.

        Args:
            drawn: Batches that were trained from the live iterator. More may have been
                drawn where Keras looks ahead.
            held: Whether Keras goes on with that iterator.
        """

    @abstractmethod
    def resume(self, position: DataPosition) -> None:
        """A run goes on that was at ``position``, whether an iterator does or not."""

    @abstractmethod
    def seek(self, position: DataPosition) -> None:
        """Make the next iterator go on where the one at ``position`` was."""

    @abstractmethod
    def fingerprint(self) -> JSON:
        """What the data is: two runs on the same data have equal fingerprints."""

    def before_iterator(self) -> None:  # noqa: B027 (few have something to do)
        """Called just before each iterator for training is made."""

    def wrap(self, iterable: Any) -> Any:
        """Each iterable that Keras is about to iterate; returned, maybe wrapped."""
        return iterable

    def on_trained(self, drawn: int) -> None:  # noqa: B027 (few have something to do)
        """So many batches of the live iterator were trained."""

    def frozen(self) -> contextlib.AbstractContextManager[Any]:
        """While this is entered no other thread draws from the data."""
        return contextlib.nullcontext()
