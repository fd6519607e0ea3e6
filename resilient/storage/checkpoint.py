"""Reads one committed directory, and verifies that it is still what was committed.

Verifying reads every byte that the manifest lists. Other files are not damage: network
file systems, file browsers and editors leave their own, and readers never open them.
The directory may be a link to where somebody moved it; a link inside it is damage.

Verified files are read again by name: somebody who writes there at that very moment can
still change them.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from resilient import display
from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    UntrustedCheckpointError,
    printable,
)
from resilient.storage import files
from resilient.storage.files import open_file, read_file
from resilient.storage.layout import MANIFEST, committed_name
from resilient.storage.manifest import KEY, FileRecord, Manifest, ManifestError, record
from resilient.storage.refusals import disk_error

T = TypeVar("T")


class DamageError(Exception):
    """A checkpoint is not what was committed; the arguments say why."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))


@dataclass(frozen=True, repr=False)
class Checkpoint(Manifest):
    """A committed directory: its path, and what it held when committed.

    Attributes:
        path: The directory.
    """

    path: Path = field(kw_only=True)

    def __repr__(self) -> str:
        about = (
            f"{self.progress}{', finished' if self.finished else ''}",
            self.created,
            display.size(self.nbytes),
            display.metrics(self.metrics),
            os.fspath(self.path),
        )
        return f"<Checkpoint {printable(', '.join(filter(None, about)))}>"

    @property
    def step(self) -> int:
        """Batches trained since the start of the run; names the checkpoint."""
        return self.progress.step

    @property
    def nbytes(self) -> int:
        """Size of all files except the manifest."""
        return sum(record.size for record in self.files.values())

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read the manifest of a committed directory, and nothing else.

        Raises:
            ManifestError: If it is missing or damaged, or belongs to another step.
            NotSupportedError: If a later version of this library wrote it.
            CheckpointReadError: If it cannot be read right now, which is not damage.
        """
        try:
            raw = read_file(path, MANIFEST, files.JSON_BYTES)
        except OSError as error:
            raise ManifestError(_why(error)) from None
        manifest = Manifest.from_bytes(raw)
        if committed_name(manifest.progress.step) != path.name:
            step = manifest.progress.step
            raise ManifestError(f"belongs to step {step:,}, not to {path.name}")
        return cls.of(manifest, path)

    @classmethod
    def of(cls, manifest: Manifest, path: Path) -> "Checkpoint":
        """The committed directory with this manifest."""
        return cls(**vars(manifest) | {"path": path})

    def verify(self) -> list[str]:
        """Compare every byte; return a line for each file with a problem.

        Raises:
            CheckpointReadError: If it cannot be read right now, which is not damage.
        """
        try:
            # As bytes: a NaN metric does not equal itself.
            if Checkpoint.read(self.path).to_bytes() != self.to_bytes():
                return [f"{MANIFEST} was replaced after it was read"]
        except ManifestError as error:
            return [str(error)]
        return self.file_problems()

    def file_problems(self) -> list[str]:
        """A line for each file that is missing, or has other bytes than committed."""
        found = (
            find_problem(self.path, name, expected)
            for name, expected in self.files.items()
        )
        return [problem for problem in found if problem is not None]

    def load(self, read: "Callable[[Checkpoint], T]") -> T:
        """Let ``read`` read it, if every byte is as committed.

        Raises:
            DamageError: If not, or if ``read`` cannot make sense of it.
            CheckpointReadError: If it cannot be read right now, which is not damage.
            UntrustedCheckpointError: A key is set, and it did not sign this checkpoint.
        """
        self.require_trusted()
        _refuse(self.verify())
        try:
            return read(self)
        except Exception as error:  # blame damage if there is any
            _refuse(self.file_problems())
            if isinstance(error, CorruptCheckpointError):
                number = disk_error(error) or 0  # libraries say it in words only
                files.require_readable(OSError(number, os.strerror(number), self.path))
                text = f"{error.problem} {error.received or ''}"
                raise DamageError([" ".join(text.split())]) from error
            raise

    def unlisted(self, most: int = 100) -> list[str]:
        """Files that the manifest does not list, and that nobody opens.

        Args:
            most: How many to name; a directory without listed files counts as one.
        """
        listed = [PurePosixPath(name) for name in self.files]
        directories = {str(parent) for path in listed for parent in path.parents}
        known = {MANIFEST, *self.files, *directories}
        found: list[str] = []
        for inner in sorted(directories | {"."}):
            with contextlib.suppress(OSError), os.scandir(self.path / inner) as entries:
                paths = (str(PurePosixPath(inner, entry.name)) for entry in entries)
                others = (path for path in paths if path not in known)
                found += islice(others, most - len(found))
        return sorted(found)

    def content(self, name: str) -> bytes:
        """A file that is not a tensor, if the manifest lists it.

        Raises:
            CorruptCheckpointError: It does not, or the file has changed.
        """
        try:
            if name in self.files:
                return read_file(self.path, name, files.JSON_BYTES)
            why = f"is not listed in {MANIFEST}"
        except OSError as error:
            why = _why(error)
        raise CorruptCheckpointError(
            f"{name} {why}.",
            received=os.fspath(self.path),
            hint=ANOTHER_STEP,
        )

    def require_trusted(self) -> None:
        """Raise UntrustedCheckpointError unless ``is_trusted``."""
        if self.is_trusted():
            return
        raise UntrustedCheckpointError(
            f"{self.path} is {self.signature.partition(':')[0]}, so it is not used.",
            received=f"{KEY} is set, but this was not signed with it",
            hint=f"Set {KEY} to the key that signed it. If you are "
            "sure that nobody else could write there, unset it: checkpoints are then "
            "used, and saved, without signatures.",
        )


def _refuse(problems: list[str]) -> None:
    if problems:
        raise DamageError(problems)


def find_problem(
    directory: Path, name: str, expected: FileRecord, compare: bool = True
) -> str | None:
    """What is wrong with a file of a checkpoint, in words.

    Args:
        directory: The checkpoint.
        name: The file, relative to it.
        expected: What it was when it was committed.
        compare: Whether to compare its bytes as well.

    Raises:
        CheckpointReadError: It cannot be read right now, which is not damage.
    """
    try:
        with open(open_file(directory, name), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{name} has {size:,} bytes instead of {expected.size:,}"
            if compare and not record(file, size).matches(expected):
                return f"{name} does not match its checksum"
    except OSError as error:
        return f"{name} {_why(error)}"
    return None


def _why(error: OSError) -> str:
    """Why a file cannot be read, to follow its name; raises unrelated errors."""
    files.require_readable(error)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "is missing"
    if error.errno == errno.ELOOP:
        return "is a symbolic link, which is not followed: copy with `cp -L`"
    return f"cannot be read ({error.strerror})"
