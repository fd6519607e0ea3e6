"""Getting a source of training data back to a position: one module per way.

Each module has a data adapter that Keras's ``fit`` takes in place of its own, gives
the same batches in the same order, and can tell and take a position.
"""

from typing import Any, Protocol

JSON = dict[str, Any]


class Positioned(Protocol):
    """What the training iterator needs of a data adapter."""

    def position(self, drawn: int) -> JSON:
        """Where the live iterator is.

        Args:
            drawn: Batches that were trained from it. More may have been drawn where
                Keras looks ahead.
        """

    def resume(self, position: JSON) -> None:
        """A run goes on that was at ``position``, whether an iterator does or not."""

    def seek(self, position: JSON | None) -> None:
        """Make the next iterator start at ``position``; None: draw a new order."""

    def prepare(self) -> None:
        """Called just before each iterator is made."""

    def fingerprint(self) -> JSON:
        """What the data is: two runs on the same data have equal fingerprints."""
