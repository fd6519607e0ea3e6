"""Finds the runs below a directory, each with its newest checkpoint."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from resilient.serialization import JSON
from resilient.storage import layout

_DEPTH = 3
_MOST = 10_000  # directories to search
_DEFAULT = Path("runs")
_CHECKPOINT = re.compile(r"step-[0-9]{8}")


def default_directory() -> Path:
    """Where ``ls`` looks without an argument: here, or in ``runs``."""
    here = Path()
    return here if is_run(here) or not _DEFAULT.is_dir() else _DEFAULT


def is_run(directory: Path) -> bool:
    """Whether a run has used the directory."""
    ours = (layout.EVENTS, layout.HEARTBEAT)
    there = any((directory / name).is_file() for name in ours)
    return there or bool(layout.committed_steps(directory))


class RunSearch:
    """Looks for runs, without following links, up to a limit.

    Attributes:
        complete: Whether everything was searched.
        unreadable: Unreadable directories, with the reason.
    """

    def __init__(self, directory: Path) -> None:
        self.complete = True
        self.unreadable: list[JSON] = []
        self._top = directory
        self._left = _MOST

    def found(self) -> Iterator[Path]:
        """The runs' directories, sorted by name."""
        return self._below(self._top, _DEPTH)

    def _below(self, directory: Path, depth: int) -> Iterator[Path]:
        for path in self._directories(directory):
            try:
                if is_run(path):
                    yield path
            except OSError as error:
                self._not_read(path, error)
                continue
            if depth > 1:
                yield from self._below(path, depth - 1)

    def _directories(self, directory: Path) -> list[Path]:
        """Subdirectories that may be or contain runs."""
        if self._left <= 0:
            self.complete = False
            return []
        self._left -= 1
        try:
            with os.scandir(directory) as entries:
                found = [
                    directory / entry.name
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and _may_hold(entry.name)
                ]
        except OSError as error:
            self._not_read(directory, error)
            return []
        return sorted(found)

    def _not_read(self, directory: Path, error: OSError) -> None:
        name = os.fspath(directory.relative_to(self._top))
        why = os.strerror(error.errno) if error.errno else str(error)
        self.unreadable.append({"name": name, "message": why})


def _may_hold(name: str) -> bool:
    ours = name == layout.QUARANTINE or _CHECKPOINT.match(name)
    return not (ours or name.startswith("."))
