"""The kinds of commits in a store: a checkpoint, or an unreadable manifest."""

from dataclasses import dataclass

from resilient.errors import NotSupportedError
from resilient.progress import Progress
from resilient.storage import files
from resilient.storage.layout import MANIFEST
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.remote.claims import Uploaded
from resilient.storage.remote.objects import Objects


@dataclass(frozen=True)
class Committed:
    """A commit.

    Attributes:
        uploaded: Its name.
    """

    uploaded: Uploaded


@dataclass(frozen=True)
class FarCheckpoint(Committed):
    """A checkpoint in the store.

    Attributes:
        manifest: What it holds.
    """

    manifest: Manifest

    @property
    def step(self) -> int:
        return self.uploaded.step

    @property
    def progress(self) -> Progress:
        return self.manifest.progress

    @property
    def metrics(self) -> "dict[str, float]":
        return dict(self.manifest.metrics)

    @property
    def created(self) -> str:
        return self.manifest.created


@dataclass(frozen=True)
class Unreadable(Committed):
    """A commit whose contents are unknown.

    Attributes:
        why: What is wrong with its manifest.
    """

    why: ManifestError | NotSupportedError


def look_at(uploaded: Uploaded, objects: Objects) -> FarCheckpoint | Unreadable | None:
    """Read the commit of a name; None if it has been deleted, whatever a listing says.

    Raises:
        StoreError: The store does not answer.
    """
    try:
        raw = objects.get(f"{uploaded}/{MANIFEST}", files.JSON_BYTES)
        manifest = Manifest.from_bytes(raw)
        if manifest.progress.step != uploaded.step:
            raise ManifestError(f"belongs to step {manifest.progress.step:,}")
    except FileNotFoundError:
        return None
    except (ManifestError, NotSupportedError) as error:
        return Unreadable(uploaded, error)
    return FarCheckpoint(uploaded, manifest)
