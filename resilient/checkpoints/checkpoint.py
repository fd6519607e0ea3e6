"""One committed directory, and whether it is still what was committed.

Verifying reads every byte that the manifest lists. Files that it does not list are
no damage: network file systems, file browsers and editors leave their own, and no
reader of a checkpoint looks at names that the manifest does not have. A symbolic link
counts as what it points to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilient.checkpoints.layout import MANIFEST, committed_name
from resilient.checkpoints.manifest import FileRecord, Manifest, ManifestError, record
from resilient.progress import Progress


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
        try:
            found = Checkpoint.read(self.path).manifest
            # As bytes: a metric that is NaN does not equal itself.
            if found.to_bytes() != self.manifest.to_bytes():
                return [f"{MANIFEST} was replaced after it was read"]
        except ManifestError as error:
            return [f"{MANIFEST} {error}"]
        problems = (_problem(self.path, *item) for item in self.files.items())
        return [problem for problem in problems if problem is not None]


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
