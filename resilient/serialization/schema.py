"""Dataclasses as JSON objects, and back: what a file may say is what a class says.

Types and bounds (``Annotated[int, Meta(ge=0)]``) are checked by msgspec. A missing
field without a default, or a value of another type or out of bounds, is a
``SchemaError`` that names the field. Fields that are not known are left out: a later
version may have added them. A field of type ``Any`` is taken as it is.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    ResilientError,
    printable,
)
from resilient.serialization import JSON

T = TypeVar("T")

# How many of something; what JSON keeps exactly.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

# What ``strict`` writes for a number that JSON does not have.
NotFinite = Annotated[str, msgspec.Meta(pattern=r"\A(nan|-?inf)\Z")]

# What fits into the integers of a library.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class SavedProgress:
    """Where a run was, as ``Progress.to_json`` says it."""

    step: Count
    epoch: Count
    batch: Count


# Of each batch, of each array in it, its shape; on TensorFlow that in each replica.
SavedShapes = list[list[list[Any] | None]]


@dataclasses.dataclass(frozen=True)
class SavedLosses:
    """What was seen of the losses, as ``LossWatch.state`` says it."""

    batches: Count
    mean: float
    good: list[float]


class SchemaError(ValueError):
    """What was read does not match the class."""


class MalformedError(CorruptCheckpointError, ValueError):
    """A value in a checkpoint is not what was written."""

    def __init__(self, why: object) -> None:
        super().__init__(
            "A value in the checkpoint is malformed.",
            received=str(why)[:500],
            hint=ANOTHER_STEP,
        )


def to_json(value: Any) -> JSON:
    """The fields of a dataclass; those that are dataclasses as objects as well."""
    return {
        field.name: to_json(item) if dataclasses.is_dataclass(item) else item
        for field in dataclasses.fields(value)
        for item in [getattr(value, field.name)]
    }


def from_json(cls: type[T], data: object) -> T:
    """The dataclass that ``to_json`` was given.

    Args:
        cls: The dataclass, or any type that msgspec knows.
        data: What was read.

    Raises:
        SchemaError: It does not match.
    """
    try:
        return msgspec.convert(data, cls)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # AttributeError: of an array
        raise SchemaError(printable(str(error))) from None


def well_formed(kind: Any, data: object, what: str) -> Any:
    """A part of a checkpoint, if it is as a type says.

    Args:
        kind: A dataclass, a ``TypedDict`` or any type that msgspec knows.
        data: What was read.
        what: It is, for the error.

    Raises:
        MalformedError: It is not.
    """
    try:
        return from_json(kind, data)
    except SchemaError as error:
        raise MalformedError(f"{what}: {error}") from None


def vector(data: object, dtype: str, what: str) -> np.ndarray:
    """An array in a checkpoint, if it is one of such numbers in a row.

    Raises:
        MalformedError: It is not.
    """
    if type(data) is np.ndarray and data.ndim == 1 and data.dtype == dtype:
        return data
    raise MalformedError(f"{what}: not an array of {dtype} of one dimension")


@contextlib.contextmanager
def taking(what: str) -> Iterator[None]:
    """What somebody who is given a part of a checkpoint raises: it is none of theirs.

    Args:
        what: It is, for the error.

    Raises:
        MalformedError: Whatever was raised inside, but for errors of ours.
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
        SchemaError: It is none, or nested too deep.
    """
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise SchemaError(str(error)) from None
