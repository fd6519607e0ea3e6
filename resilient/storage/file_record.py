"""Records and compares the size and the checksums of one file of a checkpoint."""

import hashlib
import io
from dataclasses import dataclass
from typing import Annotated

import xxhash
from msgspec import Meta

from resilient.serialization.schema import Count
from resilient.storage import signature

# Large blocks let xxhash release the interpreter's lock while training goes on.
_BLOCK = 1 << 20

Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


@dataclass(frozen=True)
class FileRecord:
    """The expected size and checksums of a file; with a key, the SHA-256 too."""

    size: Count
    xxh3_128: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    sha256: Sha256 | None = None

    def matches(self, other: "FileRecord") -> bool:
        """Whether everything that both contain is equal."""
        shas = {self.sha256, other.sha256} - {None}
        same = (self.size, self.xxh3_128) == (other.size, other.xxh3_128)
        return same and len(shas) < 2


def record(file: io.RawIOBase, size: int) -> FileRecord:
    """The record of an open file; reads all of it, and never more than ``size``."""
    digest, count = xxhash.xxh3_128(), 0
    sha256 = hashlib.sha256() if signature.has_key() else None
    block = memoryview(bytearray(min(_BLOCK, size)))
    while read := file.readinto(block[: size - count]):
        digest.update(block[:read])
        if sha256 is not None:
            sha256.update(block[:read])
        count += read
    return FileRecord(
        count, digest.hexdigest(), None if sha256 is None else sha256.hexdigest()
    )
