"""The directories in which KerasTuner keeps its searches.

A project that began under ``enabled`` is marked. When its search begins again, what
KerasTuner would reload is deleted, and weights that finished fits left there stay. If a
later tuner of the program overwrites it, it is put aside: the fits that return at once
write nothing, so its files are needed again.

Projects that others began are left to KerasTuner. A search that went on in one cannot
be run again, since its beginning is gone: that is refused.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import xxhash

from resilient.errors import CheckpointMismatchError
from resilient.storage.files import read_file, replace_text
from resilient.training.enabled.fits_file import OF_PROJECTS
from resilient.training.enabled.journal import Journal

MARK = "resilient.txt"
_TUNER = "tuner0.json"  # where it is, KerasTuner reloads
_TRIALS = "trial_*/trial.json"


class Project:
    """That of the next tuner which the program makes.

    Args:
        path: Where it is.
        journal: Of the program.
    """

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path, self._all, self._run = path, journal.projects, journal.run
        self._number, self._before = self._all.next()

    @contextlib.contextmanager
    def entered(self, *, overwrite: object) -> Iterator[bool]:
        """While its tuner is made; whether that may delete what is there.

        Raises:
            CheckpointMismatchError: The trials of before are no longer there, or those
                which they followed are not what they were.
        """
        if self._is_ours(self._before):
            self._begin_again(self._before)
            yield False
        elif self._before:
            if self._before != self._others():
                raise CheckpointMismatchError(
                    "This KerasTuner search continued a project of another program, "
                    "and that project has changed since.",
                    received=str(self._path),
                    hint="Use another directory for the fits: the search continues "
                    "after the trials that are there.",
                )
            yield bool(overwrite)
        elif overwrite or not self._is_of_others():
            yield from self._begin(overwrite=bool(overwrite))
        else:
            self._all.put(self._number, self._others())
            yield False

    def _begin(self, *, overwrite: bool) -> Iterator[bool]:
        mark = f"{self._run}-{self._number}"
        if overwrite:
            self._put_aside()
        if _mark(self._aside(mark)) == mark:  # of an attempt that made no fit
            shutil.rmtree(self._aside(mark))
        yield overwrite
        if self._is_ours(there := _mark(self._path)):  # of one that has not searched
            mark = there
        else:
            self._path.mkdir(parents=True, exist_ok=True)
            replace_text(self._path / MARK, mark)
        self._all.put(self._number, mark)

    def _begin_again(self, mark: str) -> None:
        if _mark(self._path) != mark:
            self._put_aside()
            if not os.path.lexists(self._path) and self._aside(mark).is_dir():
                self._aside(mark).rename(self._path)
        if _mark(self._path) != mark:
            raise CheckpointMismatchError(
                "The project directory of this KerasTuner search is missing, or was "
                "replaced.",
                received=str(self._path),
                hint="Restore it, or use another directory for the fits.",
            )
        for state in (_TUNER, "oracle.json", _TRIALS):
            for file in self._path.glob(state):
                file.unlink()

    def _put_aside(self) -> None:
        """Move what another tuner of this program began."""
        mark = _mark(self._path)
        if self._is_ours(mark):
            self._path.rename(self._aside(mark))

    def _aside(self, mark: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{mark}")

    def _is_ours(self, mark: str) -> bool:
        return mark.startswith(f"{self._run}-")

    def _is_of_others(self) -> bool:
        """Whether somebody's trials are there, or those of an earlier tuner of ours."""
        if (self._path / _TUNER).exists():
            return True
        return not _mark(self._path) and any(self._path.glob(_TRIALS))

    def _others(self) -> str:
        """A checksum of all trials."""
        found = xxhash.xxh3_128()
        for file in sorted(self._path.glob(_TRIALS)):
            found.update(f"{file.parent.name} ".encode())
            found.update(file.read_bytes())
        return found.hexdigest()


def _mark(project: Path) -> str:
    """What its mark says; empty if it has none."""
    try:
        mark = read_file(project, MARK, 100).decode()
    except (OSError, ValueError):
        return ""
    return mark if re.fullmatch(OF_PROJECTS, mark) else ""
