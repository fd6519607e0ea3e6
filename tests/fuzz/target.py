"""Something to read, how to mutate it, and one mutation as a small file.

An entry of the corpus has what was changed, against files of this repository that stay
as they are; or all of a file where there is none of its name.
"""

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from resilient.errors import Preempted, ResilientError, RolledBack

from .canary import Canary
from .oracle import Finding, watched

CORPUS = Path(__file__).parent / "corpus"

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Target:
    """One way to read some files.

    Attributes:
        name: Of the target.
        files: What is read as long as nothing is changed.
        mutate: Makes other files in the place of some of them.
        read: Reads what is in its argument, in an empty working directory.
        ours: Errors that say that a file is malformed.
        reading: Whether nothing is trained.
        share: How often it is chosen.
        stays: Whether the files are the same in each process.
    """

    name: str
    files: Files
    mutate: Callable[[Random], Files]
    read: Callable[[Files], object]
    ours: tuple[type[BaseException], ...] = (ResilientError,)
    reading: bool = True
    share: float = 1.0
    stays: bool = True

    def entry(self, changed: Files) -> str:
        """One mutation, for the corpus."""
        base = self.files if self.stays else {}
        splices = {n: _splice(base.get(n, b""), new) for n, new in changed.items()}
        return json.dumps({"target": self.name, "changed": splices}, indent=1) + "\n"

    def changed(self, entry: str) -> Files:
        """What was changed in an entry."""
        base = self.files if self.stays else {}
        return {
            name: old[:begin] + new.encode("latin-1") + old[end:]
            for name, (begin, end, new) in json.loads(entry)["changed"].items()
            for old in [base.get(name, b"")]
        }


def _splice(old: bytes, new: bytes) -> tuple[int, int, str]:
    """What to put in the place of which bytes."""
    most = min(len(old), len(new))
    begin = next((i for i in range(most) if old[i] != new[i]), most)
    most -= begin
    same = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    return begin, len(old) - same, new[begin : len(new) - same].decode("latin-1")


class Bench:
    """Where cases are run: a directory that is empty before each, and a canary."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0
        self._warm: set[str] = set()
        self._canary = Canary(directory / "canary")

    def warm_up(self, target: Target, cases: int = 20) -> None:
        """Let libraries import and compile what they do at their first use."""
        if target.name in self._warm or not target.reading:
            return
        self._warm.add(target.name)
        random = Random(0)
        for number in range(cases):
            with contextlib.suppress(Finding):
                changed = target.mutate(random) if number > 1 else {}
                self.run(replace(target, reading=False), changed)

    def run(self, target: Target, changed: Files) -> str:
        """Read a case; returns what came of it, in a word.

        Raises:
            Finding: The reader did what it may not.
        """
        # Each has its own: threads of a library may still be in the last one.
        self._count += 1
        room = self._directory / f"room{self._count}"
        (room / "tmp").mkdir(parents=True)
        before, tempfile.tempdir = tempfile.tempdir, str(room / "tmp")
        try:
            with (
                warnings.catch_warnings(action="ignore"),
                watched(room, self._canary, reading=target.reading),
            ):
                target.read({**target.files, **changed})
        except target.ours as error:
            return type(error).__name__
        except (RolledBack, Preempted) as end:
            return type(end).__name__
        except Finding:
            raise
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error
        finally:
            tempfile.tempdir = before
            shutil.rmtree(room, ignore_errors=True)
        return "read"
