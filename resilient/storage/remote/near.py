"""Tracks whether a local directory is up to date with the store.

``remote.json`` in the local directory names the run in the store, and the claim under
which this directory was last written. While the store names the same owner, the
directory is up to date, and may be ahead of the store. Otherwise another machine has
continued the run, and the store is right.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from resilient.errors import CheckpointMismatchError, CheckpointReadError
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage import files, layout
from resilient.storage.remote.address import Address

NAME = layout.REMOTE

_CLAIMS = 1000

_Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{12}\Z")]


@dataclass(frozen=True)
class Near:
    """What a local directory knows of the store.

    Attributes:
        address: Of the run.
        claims: The claim that it follows; and while a new one is being made, all that
            the store may have taken meanwhile.
        until: The step after which what is in the store has been abandoned here, and
            the store does not know it yet; None if it does.
        begun: Whether the store has taken a claim: from then on it is not empty.
    """

    address: Annotated[str, Meta(max_length=4096)]
    claims: Annotated[list[_Id], Meta(max_length=_CLAIMS)]
    until: Annotated[int, Meta(ge=-1, le=layout.LAST_STEP)] | None = None
    begun: bool = False

    @classmethod
    def read(cls, directory: Path, address: Address) -> "Near | None":
        """What the directory knows; None if it is new to the store.

        Raises:
            CheckpointMismatchError: It is the local directory of another run.
            CheckpointReadError: ``remote.json`` is damaged.
        """
        try:
            raw = files.read_file(directory, NAME, files.SMALL_BYTES)
            near = from_json(cls, parse(raw))
        except FileNotFoundError:
            return None
        except (SchemaError, OSError) as error:
            raise CheckpointReadError(
                f"{NAME} in the local directory cannot be read, so it is not known "
                "whether the directory or the object store is further ahead.",
                received=f"{directory / NAME}: {error}",
                hint=f"Delete {directory} to continue from the object store.",
            ) from None
        if near.address != str(address):
            raise CheckpointMismatchError(
                "The local directory belongs to a run in another place.",
                received=f"{directory} holds checkpoints of {near.address}, and "
                f"checkpoint_dir is {address}",
                hint="Use another local_dir: each run needs its own.",
            )
        return near

    def write(self, directory: Path) -> None:
        """Write it to disk atomically."""
        files.replace_text(directory / NAME, json.dumps(asdict(self), indent=1) + "\n")

    def claiming(self, owner: str) -> "Near":
        """The same while the run is being claimed: any of them may be the owner's."""
        claims = dict.fromkeys([*self.claims, owner])
        return replace(self, claims=[*claims][-_CLAIMS:])
