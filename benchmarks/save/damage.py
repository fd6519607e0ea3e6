"""Whether a restore notices that a file is not what was written."""

import os
from collections.abc import Callable
from pathlib import Path

from subjects import Subject

_PLACES = (0.3, 0.5, 0.8)  # in the largest file


def is_seen(make: Callable[[], Subject], step: Callable[[], None]) -> bool:
    """Whether it refuses a save in which one bit changed, wherever that is.

    Args:
        make: A new subject, which has no other save to fall back to.
        step: Trains one step.
    """
    return all(_is_seen_at(place, make(), step) for place in _PLACES)


def _is_seen_at(place: float, subject: Subject, step: Callable[[], None]) -> bool:
    step()
    subject.save()
    subject.wait()
    _flip_a_bit(subject.directory, place)
    try:
        subject.restore()
    except Exception:  # each has its own
        return True
    else:
        return False
    finally:
        subject.close()


def _flip_a_bit(directory: Path, place: float) -> None:
    files = [path for path in directory.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(int(largest.stat().st_size * place))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
