"""Finds the last traceback that a process printed, for failures outside ``fit``."""

import hashlib
import re

from resilient.serialization import JSON

_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s+File "(.*)", line (\d+), in (.*)')
_END = re.compile(r"([A-Za-z_][\w.]*)(?:: ?(.*))?")


def last_traceback(text: str) -> JSON:
    """The last traceback in a text, as the fields of a "failed" event.

    Its "message" is the first line of the exception's text; its "signature" is the same
    for the same exception from the same lines. Empty if there is no traceback.
    """
    _, start, after = text.rpartition(_START)
    frames: list[str] = []
    for line in after.splitlines()[1:] if start else []:
        if frame := _FRAME.match(line):
            frames.append(f"{frame[1]}:{frame[2]} {frame[3]}")
        elif line and not line[0].isspace():
            end = _END.fullmatch(line)
            return _failure(end[1], end[2] or "", frames) if end else {}
    return {}


def _failure(error: str, message: str, frames: list[str]) -> JSON:
    same = hashlib.sha256("\n".join([error, *frames]).encode()).hexdigest()[:16]
    return {"error": error, "message": message, "where": frames, "signature": same}
