"""The file that makes a directory a checkpoint, and vouches for its every bit.

Written last, as strict JSON. It has the size and the checksum of every other file and a
checksum of itself, so a flipped bit anywhere is noticed. The checksums detect
accidents, not attackers: xxh3 is not cryptographic, and anybody can compute it. So a
manifest is trusted only as far as its schema goes.

If ``RESILIENT_KEY`` is set, each new manifest also has an HMAC-SHA256 and the SHA-256
of every file, and a checkpoint without them is refused. So nobody without the key can
write or change a checkpoint that will be used. That does not prove that a checkpoint is
the newest. Anyone who can write to the directory can delete checkpoints, and put back
older ones, or ones from another run signed with the same key, under the name of their
own step. Files beside the checkpoints (``rollbacks.json``, events, requests) are not
signed.
"""

import enum
import hashlib
import hmac
import io
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import xxhash
from msgspec import Meta

from resilient.errors import NotSupportedError, message
from resilient.progress import Progress
from resilient.serialization.schema import (
    Count,
    NotFinite,
    SavedProgress,
    from_json,
    parse,
    strict,
)
from resilient.storage.files import JSON_BYTES, is_inside, open_file
from resilient.storage.layout import MANIFEST

KEY = "RESILIENT_KEY"
SCHEMA = 1
LIBRARY = "keras-resilient"  # its version, in the environment

# The manifest's own checksum is computed with zeros in its place, and the signature
# with zeros for both. Every schema begins this way, so that a later one is not mistaken
# for damage.
_ZEROS, _UNSIGNED = "0" * 32, "0" * 64
_BEGIN = re.compile(
    rb'\A\{\n "xxh3_128": "([0-9a-f]{32})",\n(?: "hmac_sha256": "([0-9a-f]{64})",\n)?'
)

_LEAST = 16  # characters of a key
# Each purpose has a key of its own, derived from that.
_MANIFEST = b"keras-resilient manifest v1"
_PROCESS = b"keras-resilient process v1"

# Large blocks let xxhash release the interpreter's lock while training goes on.
_BLOCK = 1 << 20

_Text = Annotated[str, Meta(max_length=1000)]
_Path = Annotated[str, Meta(max_length=4096)]
_Time = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")]


class ManifestError(Exception):
    """The manifest is not what was written; the text, to follow its name, says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{MANIFEST} {why}")


class Signature(enum.StrEnum):
    """Whose signature a manifest has, in words."""

    OURS = f"signed with the key in {KEY}"
    OTHER = f"signed, but not with the key in {KEY}"
    UNCHECKED = "signed, but there is no key here to check it with"
    NONE = "not signed: anyone who can write here could have written it"


@dataclass(frozen=True)
class FileRecord:
    """The expected size and checksums of a file; with a key, the SHA-256 too."""

    size: Count
    xxh3_128: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None = None

    def matches(self, other: "FileRecord") -> bool:
        """Whether everything that both contain is equal."""
        shas = {self.sha256, other.sha256} - {None}
        same = (self.size, self.xxh3_128) == (other.size, other.xxh3_128)
        return same and len(shas) < 2


def has_key() -> bool:
    """Whether checkpoints are signed here.

    Raises:
        ValueError: The key is too short.
    """
    return _key(_MANIFEST) is not None


def proof_of_key(challenge: str) -> str | None:
    """Proof for another process of having the same key; None without a key."""
    return _hmac(_PROCESS, challenge.encode())


def record(file: io.RawIOBase, size: int) -> FileRecord:
    """The record of an open file; reads all of it, and never more than ``size``."""
    digest, count = xxhash.xxh3_128(), 0
    sha256 = hashlib.sha256() if has_key() else None
    block = memoryview(bytearray(min(_BLOCK, size)))
    while read := file.readinto(block[: size - count]):
        digest.update(block[:read])
        if sha256 is not None:
            sha256.update(block[:read])
        count += read
    sha = None if sha256 is None else sha256.hexdigest()
    return FileRecord(count, digest.hexdigest(), sha)


def records(directory: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """The records of files in a directory, by name."""
    found = {}
    for name in names:
        with open(open_file(directory, name), "rb", buffering=0) as file:
            found[name] = record(file, os.fstat(file.fileno()).st_size)
    return found


def now() -> str:
    """The current time, in the format of all files of a checkpoint directory."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True)
class _Schema:
    schema: Annotated[int, Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True, kw_only=True)
class _Body:
    """The schema of a manifest."""

    progress: SavedProgress
    finished: bool
    metrics: Annotated[dict[_Text, float | NotFinite], Meta(max_length=10_000)]
    created: _Time
    environment: Annotated[dict[_Text, _Text], Meta(max_length=1000)]
    files: Annotated[dict[_Path, FileRecord], Meta(max_length=1_000_000)]
    hmac_sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint holds.

    Attributes:
        progress: Where the run was.
        finished: Whether the run was over, with nothing left to train.
        metrics: The values that keep policies compare.
        created: When it was committed, ISO 8601 in UTC.
        environment: Versions of the libraries that wrote it, by name.
        files: The file records, by path relative to the checkpoint, with slashes.
        hmac_sha256: Its signature, if it has one.
        signature: Whose signature it is, as far as known.
    """

    progress: Progress
    finished: bool
    metrics: Mapping[str, float]
    created: str
    environment: Mapping[str, str]
    files: Mapping[str, FileRecord]
    hmac_sha256: str | None = None
    signature: Signature = Signature.NONE

    def is_trusted(self) -> bool:
        """Whether it is signed with the key, or no key is set."""
        return not has_key() or self.signature is Signature.OURS

    def signed(self) -> "Manifest":
        """The same, signed if a key is set."""
        if not has_key():
            return self
        unsigned = replace(self, hmac_sha256=_UNSIGNED)
        mark = _hmac(_MANIFEST, unsigned._unsealed())
        return replace(self, hmac_sha256=mark, signature=Signature.OURS)

    def to_bytes(self) -> bytes:
        """The manifest as a file."""
        raw = self._unsealed()
        checksum = xxhash.xxh3_128_hexdigest(raw)
        return raw.replace(_ZEROS.encode(), checksum.encode(), 1)

    def _unsealed(self) -> bytes:
        body = {
            "xxh3_128": _ZEROS,
            "hmac_sha256": self.hmac_sha256,
            "schema": SCHEMA,
            "progress": self.progress._asdict(),
            "finished": self.finished,
            "metrics": {name: strict(x) for name, x in self.metrics.items()},
            "created": self.created,
            "environment": dict(self.environment),
            "files": {name: _given(vars(file)) for name, file in self.files.items()},
        }
        # With `indent`, json.dumps would be Python, which training would wait for.
        text = json.dumps(_given(body), ensure_ascii=False, allow_nan=False)
        return msgspec.json.format(text.encode(), indent=1) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Manifest":
        """Parse a manifest, if it is exactly what was written.

        Raises:
            ManifestError: If it is not, or is no manifest.
            NotSupportedError: If a later version of this library wrote it.
        """
        if not raw:
            raise ManifestError("is empty")
        if len(raw) > JSON_BYTES:
            raise ManifestError(f"has {len(raw):,} bytes")
        match = _BEGIN.match(raw)
        if match is None:
            raise ManifestError("does not start like a manifest")
        zeroed = _zeroed(raw, match, 1)
        if xxhash.xxh3_128_hexdigest(zeroed).encode() != match[1]:
            raise ManifestError("does not match its checksum")
        try:
            data = parse(raw)
            _require_known_schema(data)
            body = from_json(_Body, data)
            datetime.fromisoformat(body.created)
        except ValueError as error:
            raise ManifestError(f"does not match its schema: {error}") from None
        signed = match[2] and match[2].decode()
        if body.hmac_sha256 != signed:
            raise ManifestError("has a signature in the wrong place")
        for name, file in body.files.items():
            if name == MANIFEST or not (is_inside(name) and name.isprintable()):
                raise ManifestError(f"lists an impossible file: {name!a}")
            if signed and file.sha256 is None:
                raise ManifestError(f"is signed without the SHA-256 of {name}")
        return cls(
            **vars(body)
            | {
                "progress": Progress(**vars(body.progress)),
                "metrics": {name: float(x) for name, x in body.metrics.items()},
                "signature": _whose(signed, _zeroed(zeroed, match, 2)),
            }
        )


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _zeroed(raw: bytes, match: re.Match[bytes], group: int) -> bytes:
    """The same with zeros in place of a group, if present."""
    start, end = match.span(group)
    return raw if start < 0 else raw[:start] + b"0" * (end - start) + raw[end:]


def _require_known_schema(data: Mapping[str, Any]) -> None:
    """Raise SchemaError for an invalid version, NotSupportedError for a later one."""
    number = from_json(_Schema, data).schema
    if number == SCHEMA:
        return
    environment = data.get("environment")
    wrote = environment.get(LIBRARY) if isinstance(environment, dict) else None
    known = isinstance(wrote, str) and re.fullmatch(r"[0-9][0-9a-z.+]{0,50}", wrote)
    raise NotSupportedError(
        f"A later version of {LIBRARY} wrote this checkpoint.",
        received=f"schema {number}, while this version knows {SCHEMA}",
        hint=f'Install that version or a later one: pip install "{LIBRARY}>={wrote}".'
        if known
        else "Install the version that wrote it, or a later one.",
    )


def _whose(signature: str | None, content: bytes) -> Signature:
    """Whose signature of this content it is."""
    if signature is None:
        return Signature.NONE
    ours = _hmac(_MANIFEST, content)
    if ours is None:
        return Signature.UNCHECKED
    same = hmac.compare_digest(ours, signature)
    return Signature.OURS if same else Signature.OTHER


def _hmac(purpose: bytes, content: bytes) -> str | None:
    key = _key(purpose)
    return None if key is None else hmac.new(key, content, hashlib.sha256).hexdigest()


def _key(purpose: bytes) -> bytes | None:
    given = os.environ.get(KEY)
    if given is None:
        return None
    if len(given) < _LEAST:  # also if an expected secret is empty
        raise ValueError(
            message(
                f"{KEY} is too short to be a key.",
                received=f"{len(given)} characters",
                hint=f"Use {_LEAST} characters or more, such as `openssl rand -hex "
                "32` prints; or unset it, and checkpoints are not signed.",
            )
        )
    return hmac.new(os.fsencode(given), purpose, hashlib.sha256).digest()
