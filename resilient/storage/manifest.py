"""The file that makes a directory a checkpoint: what it holds, to the last bit.

Written last, as strict JSON. It has the size and the checksum of every other file, and
a checksum of itself, so that a flipped bit anywhere is noticed. The checksums find
accidents, not attackers: xxh3 is not cryptographic.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from resilient.errors import NotSupportedError
from resilient.progress import Progress
from resilient.serialization import strict

SCHEMA = 1

# The manifest's own checksum is taken with these zeros in its place. Every schema
# begins this way, so that a later one is not taken for damage.
_ZEROS = b"0" * 32
_CHECKSUM = re.compile(rb'\A\{\n "xxh3_128": "([0-9a-f]{32})",\n')
# Large blocks let xxhash release the interpreter's lock while training goes on.
_BLOCK = 1 << 20


class ManifestError(Exception):
    """The manifest is not what was written; the text says why."""


@dataclass(frozen=True)
class FileRecord:
    """What one file of a checkpoint has to be."""

    size: int
    xxh3_128: str


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds.

    Attributes:
        progress: Where the run was.
        finished: Whether the run was over: nothing was left to train.
        metrics: What keep policies look at.
        created: When it was committed, ISO 8601 in UTC.
        environment: Versions of what wrote it, by name.
        files: By path relative to the checkpoint, with slashes.
    """

    progress: Progress
    finished: bool
    metrics: Mapping[str, float]
    created: str
    environment: Mapping[str, str]
    files: Mapping[str, FileRecord]

    def to_bytes(self) -> bytes:
        """The manifest as a file."""
        body = {
            "xxh3_128": _ZEROS.decode(),
            "schema": SCHEMA,
            "progress": self.progress.to_json(),
            "finished": self.finished,
            "metrics": {name: strict(float(x)) for name, x in self.metrics.items()},
            "created": self.created,
            "environment": dict(self.environment),
            "files": {name: vars(record) for name, record in self.files.items()},
        }
        text = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        raw = text.encode()
        return raw.replace(_ZEROS, xxhash.xxh3_128_hexdigest(raw).encode(), 1)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Manifest":
        """Read a manifest, if it is exactly what was written.

        Raises:
            ManifestError: If it is not.
            NotSupportedError: If a later version of this library wrote it.
        """
        if not raw:
            raise ManifestError("is empty")
        match = _CHECKSUM.match(raw)
        if match is None:
            raise ManifestError("does not begin as a manifest does")
        start, end = match.span(1)
        zeroed = raw[:start] + _ZEROS + raw[end:]
        if xxhash.xxh3_128_hexdigest(zeroed).encode() != match[1]:
            raise ManifestError("has other content than was written (checksum)")
        return cls._from_json(json.loads(raw))

    @classmethod
    def _from_json(cls, body: Mapping[str, Any]) -> "Manifest":
        if body["schema"] != SCHEMA:
            raise NotSupportedError(
                "Another version of keras-resilient wrote this checkpoint.",
                received=f"schema {body['schema']} where this version knows {SCHEMA}",
                hint="Install the version that wrote it, or a later one.",
            )
        return cls(
            progress=Progress.from_json(body["progress"]),
            finished=bool(body["finished"]),
            metrics={name: float(x) for name, x in body["metrics"].items()},
            created=str(body["created"]),
            environment=dict(body["environment"]),
            files={name: FileRecord(**x) for name, x in body["files"].items()},
        )


def record(path: str | os.PathLike[str]) -> FileRecord:
    """The record of a file; reads all of it."""
    digest, size = xxhash.xxh3_128(), 0
    block = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(block[:count])
            size += count
    return FileRecord(size, digest.hexdigest())
