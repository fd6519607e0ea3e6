"""What processes send each other: a message is a line of JSON.

Limits are far above what a training sends (the longest message lists the files of a
part of a checkpoint): they bound what another process can cost us, whatever it does.
"""

import json
from dataclasses import dataclass
from typing import TypeVar

from resilient.serialization import Encoded
from resilient.serialization.schema import from_json, to_json

LONGEST = 64 * 2**20  # bytes of a line
MOST = 100_000  # messages of one process that nobody has taken yet
_SHOWN = 100  # bytes of what was odd, and characters of why it is

T = TypeVar("T")


class OddMessageError(Exception):
    """What another process sent cannot be used; the text continues "it sent"."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        to: Its topic.
        body: What is said.
    """

    to: str
    body: Encoded = None


def line_of(message: Message) -> bytes:
    """A message as it is sent."""
    return json.dumps(to_json(message), separators=(",", ":")).encode() + b"\n"


def message_of(line: bytes) -> Message:
    """The message of a line.

    Raises:
        OddMessageError: It is none.
    """
    if len(line) > LONGEST:
        raise OddMessageError(f"a line of more than {LONGEST:,} bytes")
    try:
        # Not `schema.parse`: a loss that is sent may be NaN, which strict JSON has not.
        return checked(Message, json.loads(line))
    except (ValueError, RecursionError, OddMessageError) as error:
        short = f"{str(error)[:_SHOWN]}: {line[:_SHOWN]!r}"
        raise OddMessageError(f"what is no message of ours: {short}") from error


def checked(cls: type[T], data: Encoded) -> T:
    """What was sent, as the dataclass that it should be.

    Raises:
        OddMessageError: It is something else.
    """
    try:
        return from_json(cls, data)
    except ValueError as error:
        raise OddMessageError(str(error)) from error
