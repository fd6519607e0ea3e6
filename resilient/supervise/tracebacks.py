"""The last traceback that a process printed, for failures outside of ``fit``."""

import hashlib
import re
from dataclasses import dataclass

_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(.*)", line (\d+), in (.*)')
_END = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?")


@dataclass(frozen=True)
class Traceback:
    """An exception that ended a process.

    Attributes:
        error: Its class, as printed.
        message: The first line of its text.
        where: The innermost frame, ``file:line function``.
        signature: The same for the same exception from the same lines.
    """

    error: str
    message: str
    where: str
    signature: str


def last_traceback(text: str) -> Traceback | None:
    """Find the last one in what a process printed; None if there is none."""
    _, start, after = text.rpartition(_START)
    if not start:
        return None
    frames: list[str] = []
    for line in after.splitlines()[1:]:
        if frame := _FRAME.match(line):
            frames.append(f"{frame[1]}:{frame[2]} {frame[3]}")
        elif line and not line[0].isspace():
            end = _END.fullmatch(line)
            return _traceback(end[1], end[2] or "", frames) if end else None
    return None


def _traceback(error: str, message: str, frames: list[str]) -> Traceback:
    same = hashlib.sha256("\n".join([error, *frames]).encode()).hexdigest()[:16]
    where = frames[-1] if frames else "an unknown place"
    return Traceback(error, message, where, same)
