"""The messages that processes exchange: each is a line of JSON.

The limits are far above what training sends (the longest message lists the files of a
part of a checkpoint); they bound the damage that another process can do.
"""

import json
from dataclasses import dataclass
from typing import TypeVar

from resilient.serialization import Encoded
from resilient.serialization.schema import from_json, to_json

LONGEST = 64 * 2**20  # bytes per line
MOST = 100_000  # unread messages from one process
_SHOWN = 100  # bytes of the odd message, and characters of the reason

T = TypeVar("T")


class OddMessageError(Exception):
    """Another process sent something unusable; the text continues "it sent"."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        to: Its topic.
        body: Its content.
    """

    to: str
    body: Encoded = None


def line_of(message: Message) -> bytes:
    """Encode a message."""
    return json.dumps(to_json(message), separators=(",", ":")).encode() + b"\n"


def message_of(line: bytes) -> Message:
    """Decode a line.

    Raises:
        OddMessageError: It is not a message.
    """
    if len(line) > LONGEST:
        raise OddMessageError(f"a line of more than {LONGEST:,} bytes")
    try:
        # Not `schema.parse`: a loss may be NaN, which strict JSON does not have.
        return checked(Message, json.loads(line))
    except (ValueError, RecursionError, OddMessageError) as error:
        short = f"{str(error)[:_SHOWN]}: {line[:_SHOWN]!r}"
        raise OddMessageError(
            f"something that is not one of our messages: {short}"
        ) from error


def checked(cls: type[T], data: Encoded) -> T:
    """A message's body, as the dataclass that it should be.

    Raises:
        OddMessageError: It is something else.
    """
    try:
        return from_json(cls, data)
    except ValueError as error:
        raise OddMessageError(str(error)) from error
