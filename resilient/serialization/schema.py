"""Converts dataclasses to JSON objects and back; the class is the schema.

msgspec checks types and bounds (``Annotated[int, Meta(ge=0)]``). A missing field
without a default, or a value of the wrong type or out of bounds, is a ``SchemaError``
that names the field. Unknown fields are ignored: a later version may have added them. A
field of type ``Any`` is taken as it is.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    ResilientError,
    printable,
)
from resilient.serialization import JSON

T = TypeVar("T")

# Counts, within what JSON holds exactly.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

# What ``strict`` writes for a number that JSON lacks.
NotFinite = Annotated[str, msgspec.Meta(pattern=r"\A(nan|-?inf)\Z")]


@dataclasses.dataclass(frozen=True)
class SavedProgress:
    """The progress of a run, from ``Progress.to_json``."""

    step: Count
    epoch: Count
    batch: Count


@dataclasses.dataclass(frozen=True)
class SavedLosses:
    """The state of the loss watch, from ``LossWatch.state``."""

    batches: Count
    mean: float
    good: list[float]


class SchemaError(ValueError):
    """The input does not match the class."""


class MalformedError(CorruptCheckpointError, ValueError):
    """A value in a checkpoint is not what was written."""

    def __init__(self, why: object) -> None:
        super().__init__(
            "A value in the checkpoint is malformed.",
            received=str(why)[:500],
            hint=ANOTHER_STEP,
        )


def strict(value: float) -> float | str:
    """A float in strict JSON, which has no NaN; ``float()`` reads either form back."""
    return value if math.isfinite(value) else str(value)


def to_json(value: Any) -> JSON:
    """The fields of a dataclass; nested dataclasses become objects as well."""
    return {
        field.name: to_json(item) if dataclasses.is_dataclass(item) else item
        for field in dataclasses.fields(value)
        for item in [getattr(value, field.name)]
    }


def from_json(cls: type[T], data: object) -> T:
    """The inverse of ``to_json``.

    Args:
        cls: The dataclass, or any type that msgspec knows.
        data: What was read.

    Raises:
        SchemaError: It does not match.
    """
    try:
        return msgspec.convert(data, cls)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # of msgspec, and of arrays where another type is wanted
        raise SchemaError(printable(str(error))) from None


@contextlib.contextmanager
def taking(what: str) -> Iterator[None]:
    """Turn exceptions of code that receives a part of a checkpoint into our own.

    Args:
        what: Its name, for the error.

    Raises:
        MalformedError: For anything raised inside, except our own errors.
    """
    try:
        yield
    except (ResilientError, MemoryError, Warning):
        raise
    except Exception as error:  # each library has a dozen for this
        raise MalformedError(f"{what}: {type(error).__name__}: {error}") from error


def parse(raw: bytes | str) -> Any:
    """Plain JSON values, of strict JSON.

    Raises:
        SchemaError: It is not strict JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise SchemaError(str(error)) from None
