"""Records who owns a run in an object store, and which checkpoints are part of it.

Every attempt claims the run by writing ``claims.json``, and everything it uploads
carries its claim in the name. Each former claim counts up to the step from which the
next one continued. So uploads of an attempt that has not noticed yet that another one
has taken over are not part of the run, and neither is what a rollback abandons: one
small object decides it.
"""

import json
import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from resilient.errors import CheckpointMismatchError, CheckpointReadError
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage import files, layout
from resilient.storage.manifest import now
from resilient.storage.remote.address import Address

NAME = "claims.json"
LIMIT = 16 << 20  # bytes

_SCHEMA = 1
_UPLOADED = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,14})-([0-9a-f]{12})-([0-9]{4,9})")
_MOST = 1000  # claims that a local copy names

_Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{12}\Z")]
_Text = Annotated[str, Meta(max_length=1000)]
_Step = Annotated[int, Meta(ge=-1, le=layout.LAST_STEP)]


def new_id() -> str:
    """The id of a claim that nobody else has."""
    return secrets.token_hex(6)


@dataclass(frozen=True, order=True)
class Uploaded:
    """The name of a checkpoint in the store: its step, its claim, its number in it."""

    step: int
    claim: str
    number: int

    def __str__(self) -> str:
        return f"{layout.committed_name(self.step)}-{self.claim}-{self.number:04d}"

    @classmethod
    def parse(cls, name: str) -> "Uploaded | None":
        """Parse a name; None if it is the name of something else."""
        match = _UPLOADED.fullmatch(name)
        return match and cls(int(match[1]), match[2], int(match[3]))


@dataclass(frozen=True)
class Claim:
    """What one attempt on the run may contribute.

    Attributes:
        id: Of the claim.
        until: The last step that counts; None for the owner's claim, where all do.
    """

    id: _Id
    until: _Step | None = None


@dataclass(frozen=True)
class Claims:
    """All claims that still contribute to the run.

    Attributes:
        claims: Oldest first; the last one is the owner's.
        host: Where the owner runs.
        pid: Its process.
        started: When it claimed the run, in ISO 8601 and UTC.
    """

    claims: Annotated[list[Claim], Meta(min_length=1, max_length=100_000)]
    host: _Text
    pid: Annotated[int, Meta(ge=0, le=2**53)]
    started: _Text
    schema: Annotated[int, Meta(ge=1, le=_SCHEMA)] = _SCHEMA

    @classmethod
    def following(cls, former: "Claims | None", until: int, mine: str) -> "Claims":
        """Those of this process, which takes over a run.

        Args:
            former: The claims so far.
            until: Their last step that still counts; -1 for none.
            mine: The id of the new one.
        """
        kept = [
            replace(each, until=until if each.until is None else min(each.until, until))
            for each in (former.claims if former is not None and until >= 0 else [])
        ]
        host = socket.gethostname()[:1000]
        return cls([*kept, Claim(mine)], host, os.getpid(), now())

    @property
    def owner(self) -> str:
        """The claim that owns the run now."""
        return self.claims[-1].id

    def without_unused(self, used: set[str]) -> "Claims":
        """The same, without former claims that have no checkpoint left."""
        kept = [each for each in self.claims[:-1] if each.id in used]
        return replace(self, claims=[*kept, self.claims[-1]])

    def rank(self, uploaded: Uploaded) -> tuple[int, int] | None:
        """Sort key for checkpoints of one step; None for one outside the run."""
        for place, claim in enumerate(self.claims):
            if claim.id == uploaded.claim:
                counts = claim.until is None or uploaded.step <= claim.until
                return (place, uploaded.number) if counts else None
        return None

    def to_bytes(self) -> bytes:
        """The claims as an object."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Claims":
        """Read the object.

        Raises:
            SchemaError: It is something else.
        """
        return from_json(cls, parse(raw))


@dataclass(frozen=True)
class LocalCopy:
    """What a local directory knows of the store, in ``remote.json``.

    The claim under which the directory was last written: while the store names the same
    owner, the directory is up to date, and may be ahead of the store. Otherwise another
    machine has continued the run, and the store is right.

    Attributes:
        address: Of the run.
        claims: The claim that it follows; and while a new one is being made, all that
            the store may have taken meanwhile.
        until: The step after which what is in the store has been abandoned here, and
            the store does not know it yet; None if it does.
        begun: Whether the store has taken a claim: from then on it is not empty.
    """

    address: Annotated[str, Meta(max_length=4096)]
    claims: Annotated[list[_Id], Meta(max_length=_MOST)]
    until: _Step | None = None
    begun: bool = False

    @classmethod
    def read(cls, directory: Path, address: Address) -> "LocalCopy | None":
        """What the directory knows; None if it is new to the store.

        Raises:
            CheckpointMismatchError: It is the local directory of another run.
            CheckpointReadError: ``remote.json`` is damaged.
        """
        try:
            raw = files.read_file(directory, layout.REMOTE, files.SMALL_BYTES)
            known = from_json(cls, parse(raw))
        except FileNotFoundError:
            return None
        except (SchemaError, OSError) as error:
            raise CheckpointReadError(
                f"{layout.REMOTE} in the local directory cannot be read, so it is not "
                "known whether the directory or the object store is further ahead.",
                received=f"{directory / layout.REMOTE}: {error}",
                hint=f"Delete {directory} to continue from the object store.",
            ) from None
        if known.address != str(address):
            raise CheckpointMismatchError(
                "The local directory belongs to a run in another place.",
                received=f"{directory} holds checkpoints of {known.address}, and "
                f"checkpoint_dir is {address}",
                hint="Use another local_dir: each run needs its own.",
            )
        return known

    def write(self, directory: Path) -> None:
        """Write it to disk atomically."""
        text = json.dumps(asdict(self), indent=1)
        files.replace_file(directory / layout.REMOTE, f"{text}\n".encode())

    def claiming(self, owner: str) -> "LocalCopy":
        """The same while the run is being claimed: any of them may be the owner's."""
        claims = dict.fromkeys([*self.claims, owner])
        return replace(self, claims=[*claims][-_MOST:])
