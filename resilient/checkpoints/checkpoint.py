"""One committed directory, and whether it is still what was committed.

Verifying reads every byte that the manifest lists. Files that it does not list are
no damage: network file systems, file browsers and editors leave their own, and no
reader of a checkpoint looks at names that the manifest does not have. A symbolic link
counts as what it points to.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from resilient.checkpoints.layout import MANIFEST, committed_name
from resilient.checkpoints.manifest import FileRecord, Manifest, ManifestError, record
from resilient.progress import Progress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Larger files are read while their checksums are compared.
_SMALL = 1 << 20


class DamageError(Exception):
    """A checkpoint is not what was committed; the arguments say in which ways."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))


@dataclass(frozen=True)
class Checkpoint:
    """A committed directory.

    Attributes:
        path: The directory.
        manifest: What it held when it was committed.
    """

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Batches trained since the start of the run; names the checkpoint."""
        return self.manifest.progress.step

    @property
    def progress(self) -> Progress:
        """Where the run was."""
        return self.manifest.progress

    @property
    def finished(self) -> bool:
        """Whether the run was over."""
        return self.manifest.finished

    @property
    def metrics(self) -> Mapping[str, float]:
        """What keep policies look at."""
        return self.manifest.metrics

    @property
    def environment(self) -> Mapping[str, str]:
        """Versions of what wrote it."""
        return self.manifest.environment

    @property
    def created(self) -> str:
        """When it was committed, ISO 8601 in UTC."""
        return self.manifest.created

    @property
    def files(self) -> Mapping[str, FileRecord]:
        """Path relative to the checkpoint to what has to be there."""
        return self.manifest.files

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
            PermissionError: If this user may not read it, which is no damage.
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
        return cls(path, manifest)

    def verify(self) -> list[str]:
        """Compare every byte with what was committed.

        Returns:
            What is wrong, a line for each file; empty if nothing is.

        Raises:
            PermissionError: If this user may not read it, which is no damage.
        """
        return self._manifest_problems() or self._file_problems(self.files)

    def load(self, read: "Read[T]") -> T:
        """What ``read`` makes of it, if every byte is what was committed.

        Files are read and their checksums compared at the same time, so that none is
        fetched from the disk twice. Only the small ones, which say what is in the large
        ones, are compared before.

        Args:
            read: Given this checkpoint, and a function that returns when the large ones
                are compared, too.

        Raises:
            DamageError: If it is not what was committed.
            PermissionError: If this user may not read it, which is no damage.
        """
        small = {k: v for k, v in self.files.items() if v.size <= _SMALL}
        large = {k: v for k, v in self.files.items() if k not in small}
        _refuse(self._manifest_problems() or self._file_problems(small))
        with ThreadPoolExecutor(1) as thread:
            checking = thread.submit(self._file_problems, large)

            def verified() -> None:
                _refuse(checking.result())

            try:
                return read(self, verified)
            finally:  # damage is why it could not be read, if there is some
                verified()

    def _manifest_problems(self) -> list[str]:
        try:
            found = Checkpoint.read(self.path).manifest
            # As bytes: a metric that is NaN does not equal itself.
            if found.to_bytes() != self.manifest.to_bytes():
                return [f"{MANIFEST} was replaced after it was read"]
        except ManifestError as error:
            return [f"{MANIFEST} {error}"]
        return []

    def _file_problems(self, files: Mapping[str, FileRecord]) -> list[str]:
        problems = (_problem(self.path, *item) for item in files.items())
        return [problem for problem in problems if problem is not None]


class Read(Protocol[T_co]):
    """Reads a checkpoint that is being verified."""

    def __call__(self, checkpoint: Checkpoint, verified: Callable[[], None], /) -> T_co:
        """Read it; call ``verified`` before what needs intact files."""


def _refuse(problems: list[str]) -> None:
    if problems:
        raise DamageError(problems)


def _problem(directory: Path, name: str, expected: FileRecord) -> str | None:
    path = directory / name
    try:
        size = path.stat().st_size
        if size != expected.size:
            return f"{name} has {size:,} bytes instead of {expected.size:,}"
        if record(path) != expected:
            return f"{name} has other content than was written (checksum)"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None
