"""The position of a run's data in a checkpoint, apart from each source's own part.

A position consists of plain values and arrays.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from resilient.errors import DataNotResumableError
from resilient.serialization import JSON
from resilient.serialization.schema import Count


@dataclass(frozen=True, kw_only=True)
class DataPosition:
    """The position of one source of data.

    Attributes:
        drawn: Batches of the live iterator that were trained.
        source: What this kind of data needs to return there.
        epochs: Epochs counted by Keras's data adapter.
        given: Batches that the live iterator has yielded; None if the next iterator
            does not exist yet.
        pending: The last of these, which have not been trained.
        last: Checksum of the last batch yielded.
    """

    drawn: Count
    source: JSON
    epochs: Count = 0
    given: Count | None = None
    pending: list[Any] = field(default_factory=list)
    last: str | None = None

    def switched_from(self, backend: str) -> "DataPosition":
        """The same in a process of another backend than the one that saved it.

        Raises:
            DataNotResumableError: Batches would have to be drawn as that one draws.
        """
        if "drawn_from" in self.source:  # arrays
            if self.drawn and self.source.get("order") is not None:
                raise _cannot_switch("the rest of this order of the arrays", backend)
            return replace(self, source={"drawn_from": self.source["drawn_from"]})
        if "seeds" not in self.source:
            return self
        given = self.drawn or None if self.given is None else self.given
        if self.pending or (given and "state" not in self.source):
            raise _cannot_switch("batches of this tf.data pipeline", backend)
        # What Keras wrote for that backend, and a checksum that it computed.
        others = ("constants", "first")
        source = {key: item for key, item in self.source.items() if key not in others}
        return replace(self, source=source, given=given, last=None)

    def shared(self) -> "DataPosition":
        """The position without the process's own share of batches.

        A pipeline can be begun again, and counts: no iterator's state is needed.
        """
        if "seeds" not in self.source:
            return self
        own = ("state", "constants")  # a shard's are not those of another
        source = {key: item for key, item in self.source.items() if key not in own}
        given = None if self.given is None else self.drawn
        return replace(self, source=source, given=given, pending=[], last=None)


def _cannot_switch(what: str, backend: str) -> DataNotResumableError:
    return DataNotResumableError(
        f"The middle of this epoch cannot continue on another backend: {what} can only "
        f"be drawn by {backend}.",
        received=f"an epoch that {backend} began",
        hint=f"Set KERAS_BACKEND={backend} until it ends. Or continue from the end of "
        "an epoch: pass resume=<step> with the step of a checkpoint at batch 0 (see "
        "`resilient ls`).",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingPosition:
    """The position of the training data.

    Attributes:
        held: Whether training continues with the live iterator.
        drawn_by_all: Whether every process draws the same batches.
        data: Of the data.
        num_batches: Of an epoch, as far as Keras knows.
        shortest: Batches of the shortest epoch whose data ran out.
        begun: Whether a loop has created an iterator.
        elsewhere: Whether a different number of processes has drawn so far.
    """

    held: bool
    drawn_by_all: bool
    data: DataPosition
    num_batches: Count | None = None
    shortest: Count | None = None
    begun: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True)
class ValidationPosition:
    """The position of the validation data.

    Attributes:
        made: Whether Keras has created its input.
        fingerprint: The identity of the data.
        data: Its position.
    """

    made: bool
    fingerprint: JSON
    data: DataPosition


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The positions of all data of a run; None if not known yet."""

    x: TrainingPosition | None = None
    validation_data: ValidationPosition | None = None

    def switched_from(self, backend: str) -> "Positions":
        """The same in a process of another backend than the one that saved them."""
        x, validation = self.x, self.validation_data
        return Positions(
            x=x and replace(x, data=x.data.switched_from(backend)),
            validation_data=validation
            and replace(validation, data=validation.data.switched_from(backend)),
        )
