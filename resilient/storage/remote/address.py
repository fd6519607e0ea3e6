"""Addresses of runs in object stores, such as ``s3://bucket/run``."""

import getpass
import hashlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from resilient.errors import CheckpointWriteError, message
from resilient.serialization.redaction import redacted
from resilient.storage import layout

# pathlib merges two slashes into one. A single letter is a Windows drive.
_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+):/+(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """Where a run is in an object store.

    Attributes:
        protocol: fsspec's name for the store: ``"s3"``, ``"gs"``, ``"az"``...
        path: Bucket and prefix, without a slash at the end.
    """

    protocol: str
    path: str

    def __str__(self) -> str:
        return f"{self.protocol}://{self.path}"

    @classmethod
    def of(cls, directory: object) -> "Address | None":
        """Parse ``checkpoint_dir`` as an address; None if it is a local path.

        Raises:
            ValueError: It names no bucket, or holds credentials.
        """
        path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
        match = _URL.fullmatch(path) if isinstance(path, str) else None
        if match is None and isinstance(path, str) and "://" in path:
            raise ValueError(
                message(
                    "The address of the run is not valid.",
                    received=f"checkpoint_dir={redacted(path)!r}",
                    hint='Use an address such as "s3://bucket/run", or a local path.',
                )
            )
        if match is None:
            return None
        protocol = match["protocol"].lower()
        rooted = "/" if protocol == "file" else ""
        inner = rooted + match["path"].strip("/")
        problem = None
        if not match["path"].strip("/") or "\0" in inner:
            problem = "The address of the run names no bucket or directory."
        elif {".", ".."} & set(inner.split("/")):
            problem = "The address of the run has a . or .. in it."
        elif rooted and re.match(r"\w+://[^/]", str(path)):
            problem = "The address of the run has no absolute path."
        elif "@" in inner.split("/")[0] or "?" in inner or "#" in inner:
            problem = "The address of the run holds more than a bucket and a path."
        if problem is not None:
            raise ValueError(
                message(
                    problem,
                    received=f"checkpoint_dir={redacted(str(path))!r}",
                    hint='Use an address such as "s3://bucket/run". Credentials '
                    "and other settings of the store belong in its "
                    "environment variables or in Upload(storage_options=...).",
                )
            )
        return cls(protocol, inner)

    def __truediv__(self, name: str) -> "Address":
        return Address(self.protocol, f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def local_directory(self, chosen: str | os.PathLike[str] | None) -> Path:
        """The local directory of the run, the same on every start.

        Args:
            chosen: The user's choice; None for a temporary directory that only this
                user can read.

        Raises:
            TypeError, ValueError, NotSupportedError: The choice is not a usable
            directory.
            CheckpointWriteError: Somebody else owns a directory of that name there.
        """
        if chosen is not None:
            return layout.local_directory(chosen)
        user = re.sub(r"\W", "_", getpass.getuser())
        mine = Path(tempfile.gettempdir(), f"keras-resilient-{user}")
        try:
            mine.mkdir(mode=0o700, exist_ok=True)
            found = mine.lstat()
        except OSError as error:
            raise _not_ours(mine, error.strerror) from error
        getuid = getattr(os, "getuid", None)  # Windows has none
        if not stat.S_ISDIR(found.st_mode) or (getuid and found.st_uid != getuid()):
            raise _not_ours(mine, "it belongs to somebody else")
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:12]
        return mine / f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.name)[:60]}-{digest}"


def _not_ours(path: Path, why: str | None) -> CheckpointWriteError:
    return CheckpointWriteError(
        "There is no place for the local copy of this run.",
        received=f"{path}: {why}",
        hint="Pass local_dir=, a directory on a local disk.",
    )
