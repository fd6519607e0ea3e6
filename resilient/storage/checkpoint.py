"""One committed directory, and whether it is still what was committed.

Verifying reads every byte that the manifest lists. Other files are no damage: network
file systems, file browsers and editors leave their own, and readers ignore them. A
symbolic link counts as what it points to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, TypeVar

from resilient.storage.layout import MANIFEST, committed_name
from resilient.storage.manifest import FileRecord, Manifest, ManifestError, record

T = TypeVar("T")


class DamageError(Exception):
    """A checkpoint is not what was committed; the arguments say why."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Reader(Generic[T]):
    """Reads a checkpoint whose other files were verified.

    Attributes:
        read: Reads it.
        compares: Pattern of the files that ``read`` itself verifies to the last byte.
            Only their size is verified before, so that they are read once.
    """

    read: "Callable[[Checkpoint], T]"
    compares: str = ""


@dataclass(frozen=True)
class Checkpoint(Manifest):
    """A committed directory: what it held when it was committed, and where it is.

    Attributes:
        path: The directory.
    """

    path: Path

    @property
    def step(self) -> int:
        """Batches trained since the start of the run; names the checkpoint."""
        return self.progress.step

    @property
    def nbytes(self) -> int:
        """Size of all files but the manifest."""
        return sum(record.size for record in self.files.values())

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read the manifest of a committed directory, and nothing else.

        Raises:
            ManifestError: If it is missing or damaged, or belongs to another step.
            NotSupportedError: If a later version of this library wrote it.
            PermissionError: If this user may not read it, which is not damage.
        """
        try:
            manifest = Manifest.from_bytes((path / MANIFEST).read_bytes())
        except FileNotFoundError:
            raise ManifestError("is missing") from None
        except NotADirectoryError:
            raise ManifestError("is missing (this is not a directory)") from None
        except PermissionError:
            raise
        except OSError as error:
            raise ManifestError(f"cannot be read ({error.strerror})") from None
        if committed_name(manifest.progress.step) != path.name:
            step = manifest.progress.step
            raise ManifestError(f"belongs to step {step:,}, not to {path.name}")
        return cls.of(manifest, path)

    @classmethod
    def of(cls, manifest: Manifest, path: Path) -> "Checkpoint":
        """The committed directory that has this manifest."""
        return cls(**vars(manifest), path=path)

    def verify(self) -> list[str]:
        """What is wrong, a line for each file; compares every byte.

        Raises:
            PermissionError: If this user may not read it, which is not damage.
        """
        return self._manifest_problems() or self._file_problems()

    def load(self, reader: "Reader[T]") -> T:
        """Let a reader read it, if every byte is what was committed.

        Raises:
            DamageError: If it is not.
            PermissionError: If this user may not read it, which is not damage.
        """
        _refuse(self._manifest_problems() or self._file_problems(but=reader.compares))
        try:
            return reader.read(self)
        except Exception:  # blame damage, if there is any
            _refuse(self._file_problems())
            raise

    def _manifest_problems(self) -> list[str]:
        try:
            # As bytes: a metric that is NaN does not equal itself.
            if Checkpoint.read(self.path).to_bytes() != self.to_bytes():
                return [f"{MANIFEST} was replaced after it was read"]
        except ManifestError as error:
            return [f"{MANIFEST} {error}"]
        return []

    def _file_problems(self, but: str = "") -> list[str]:
        problems = (
            _problem(self.path / name, name, expected, only_size=fnmatchcase(name, but))
            for name, expected in self.files.items()
        )
        return [problem for problem in problems if problem is not None]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise DamageError(problems)


def _problem(
    path: Path, name: str, expected: FileRecord, *, only_size: bool
) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected.size:
            return f"{name} has {size:,} bytes instead of {expected.size:,}"
        if not only_size and record(path) != expected:
            return f"{name} has other content than was written (checksum)"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None
