"""The position of a run's data in a checkpoint, apart from each source's own part.

A position consists of plain values and arrays. Each kind of data defines types for
``source`` and ``again``, and sees them only once they match.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from resilient.serialization import JSON
from resilient.serialization.schema import Count, well_formed

EPOCHS = 2**32  # Keras seeds generators with the number of one: they take no more


@dataclass(frozen=True, kw_only=True)
class BatchMark:
    """A batch that was yielded.

    Attributes:
        given: Its number in its iterator, counted from 1.
        last: Its checksum; None where there was no batch.
        again: What its source needs to recreate it; empty if it cannot.
    """

    given: Count
    last: str | None
    again: JSON = field(default_factory=dict)


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
        ended: The last batch of the iterator that ended last.
    """

    drawn: Count
    source: JSON
    epochs: Count = 0
    given: Count | None = None
    pending: list[Any] = field(default_factory=list)
    last: str | None = None
    ended: BatchMark | None = None

    def of(self, schema: Any) -> "DataPosition":
        """The same, of a kind of data.

        Args:
            schema: What ``source`` is then.

        Raises:
            MalformedError: It is not.
        """
        source = well_formed(schema, self.source, "the position of the data")
        return replace(self, source=source)

    def drawn_by(self, backend: str) -> "DataPosition":
        """The same in a process of another backend than drew it.

        Of arrays, whose order backends draw in their own ways, all that is known is who
        drew it.
        """
        if "seeds" in self.source:
            return self._of_pipeline(backend)
        if "drawn_from" not in self.source or "drawn_by" in self.source:
            return self
        drawn = {"backend": backend, "source": self.source}
        words = {"drawn_from": self.source["drawn_from"]}
        return replace(self, source={**words, "drawn_by": drawn})

    def _of_pipeline(self, backend: str) -> "DataPosition":
        """Where a tf.data pipeline is, of which TensorFlow counts what was trained.

        It goes there from its beginning, if its iterator's state is that of later
        batches, which were not.
        """
        source = dict(self.source)
        source.pop("constants", None)  # of functions that Keras wrote for that backend
        if self.pending:
            source.pop("state", None)
        if isinstance(first := source.get("first"), str):
            source["first"] = _marked(first, backend)
        last = None if self.last is None else _marked(self.last, backend)
        given = self.drawn or None if self.given is None else self.given
        return replace(self, source=source, given=given, last=last)

    def shared(self) -> "DataPosition":
        """The position without the process's own share of batches.

        A pipeline can be begun again, and counts: no iterator's state is needed.
        """
        if "seeds" not in self.source:
            return self
        own = ("state", "constants")  # a shard's are not those of another
        source = {key: item for key, item in self.source.items() if key not in own}
        given = None if self.given is None else self.drawn
        return replace(
            self, source=source, given=given, pending=[], last=None, ended=None
        )


def _marked(checksum: str, backend: str) -> str:
    """A checksum, and the backend that computed it: each does so in its own way."""
    return checksum if ":" in checksum else f"{backend}:{checksum}"


def made_by(checksum: str) -> tuple[str, str]:
    """The backend that computed a checksum (empty for this one), and the checksum."""
    by, _, found = checksum.rpartition(":")
    return by, found


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

    def drawn_by(self, backend: str) -> "Positions":
        """The same in a process of another backend than drew."""
        x, validation = self.x, self.validation_data
        return Positions(
            x=x and replace(x, data=x.data.drawn_by(backend)),
            validation_data=validation
            and replace(validation, data=validation.data.drawn_by(backend)),
        )
