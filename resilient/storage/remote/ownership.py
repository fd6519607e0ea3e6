"""Makes a run in an object store this process's, and the local directory a copy of it.

The order of writes matters: the local directory records a new claim before the store
does, so after a kill at any moment it is known which of the two is further ahead.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from resilient.errors import CheckpointMismatchError, CheckpointReadError
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage import files, layout, quarantine, refusals
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import ManifestError
from resilient.storage.remote.address import Address
from resilient.storage.remote.claims import NAME, Id, Step, new_id
from resilient.storage.remote.objects import StoreError
from resilient.storage.remote.remote_run import RemoteRun
from resilient.storage.remote.uploader import SideFiles

logger = logging.getLogger(__name__)

_MOST = 1000  # claims that a local copy names


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
    claims: Annotated[list[Id], Meta(max_length=_MOST)]
    until: Step | None = None
    begun: bool = False

    @classmethod
    def read(cls, directory: Path, address: Address) -> "LocalCopy":
        """Read what the directory knows; no claim if it is new to the store.

        Raises:
            CheckpointMismatchError: It is the local directory of another run.
            CheckpointReadError: ``remote.json`` is damaged.
        """
        try:
            raw = files.read_file(directory, layout.REMOTE, files.SMALL_BYTES)
            known = from_json(cls, parse(raw))
        except FileNotFoundError:
            return cls(str(address), [])
        except (SchemaError, OSError) as error:
            raise CheckpointReadError(
                f"{layout.REMOTE} in the local directory cannot be read, so it is not "
                "known whether the directory or the object store is further ahead.",
                received=f"{directory / layout.REMOTE}: {error}",
                hint="Pass another local_dir to continue from the object store. What "
                f"only {directory} has stays there.",
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


class Ownership:
    """Claims a run for this process, and decides which of its two copies counts.

    Args:
        remote: The run in the store. This process has locked its local directory.

    Attributes:
        remote: The same.
    """

    def __init__(self, remote: RemoteRun) -> None:
        self.remote, self._directory = remote, remote.directory
        self._address = remote.objects.address
        self._next, self._lock = new_id(), threading.Lock()

    def refresh(self) -> None:
        """Make the local directory a copy, if the store is further ahead.

        Raises:
            CheckpointReadError: The store does not answer.
        """
        with explained(self._address):
            if self._has_fallen_behind(anew=False):
                self._follow(anew=False)

    def take_over(self, anew: bool) -> None:
        """Do what ``refresh`` does, and own the run from now on.

        Args:
            anew: Whether the run is about to be started over.

        Raises:
            CheckpointReadError: The store does not answer, and the local directory has
                nothing to go on from.
            CheckpointMismatchError: The two are of different runs.
        """
        known, follows = self._local(), False
        try:
            follows = self._has_fallen_behind(anew)
            if follows and self.remote.claims is not None:
                # It may be running. What it commits and deletes until its next commit
                # is refused would be unknown here.
                self.remote.stop_others()
                self.remote.refresh()
                self._follow(anew)
            self._claim()
        except StoreError as error:
            if (
                follows
                or not known.claims
                or not layout.committed_steps(self._directory)
            ):
                raise refusals.unreachable(self._address, error) from None
            logger.warning(
                "The object store does not answer: %s. The run continues from %s, "
                "and is uploaded once the store answers.",
                error,
                self._directory,
            )

    def ensure(self) -> None:
        """Claim the run, if it is not this process's or something was abandoned.

        Raises:
            DirectoryInUseError: Another run has taken over meanwhile.
            StoreError: The store still fails.
        """
        local = self._local()
        if local.claims == [self.remote.mine] and local.until is None:
            return
        self.remote.refresh()
        if not self._is_up_to_date(local):
            self.remote.check_owner()
        self._claim()

    def steps(self) -> set[int]:
        """Steps of the commits in the store, without what was abandoned here."""
        with self._lock:
            until = self._local().until
        return {s for s in {**self.remote.commits} if until is None or s <= until}

    def abandon_after(self, step: int) -> None:
        """Exclude what is after a step; ``ensure`` informs the store."""
        with self._lock:
            local = self._local()
            until = step if local.until is None else min(step, local.until)
            replace(local, until=until).write(self._directory)

    def _claim(self) -> None:
        mine = self._next  # until the store has taken it: an answer may be lost
        with self._lock:
            local = self._local()
            claims = [*dict.fromkeys([*local.claims, mine])][-_MOST:]
            replace(local, claims=claims).write(self._directory)
        newest = max(self.remote.commits, default=-1)
        self.remote.take(mine, newest if local.until is None else local.until)
        self._next = new_id()
        with self._lock:
            now = self._local()
            until = None if now.until == local.until else now.until
            now = replace(now, claims=[mine], until=until, begun=True)
            now.write(self._directory)

    def _local(self) -> LocalCopy:
        return LocalCopy.read(self._directory, self._address)

    def _is_up_to_date(self, local: LocalCopy) -> bool:
        claims = self.remote.claims
        return not local.begun if claims is None else claims.owner in local.claims

    def _has_fallen_behind(self, anew: bool) -> bool:
        """Whether the store knows better; raises where the two are different runs."""
        self.remote.refresh()
        local, claims = self._local(), self.remote.claims
        behind = not self._is_up_to_date(local)
        if anew:
            return behind
        if not (steps := layout.committed_steps(self._directory)):
            self.remote.check_claimed()
        problem, how = None, ""
        if claims is not None and not local.claims:
            problem = "The local directory has checkpoints of another run."
            how = "the object store, pass another local_dir"
        elif claims is None and local.begun:
            problem = "The object store no longer knows this run."
            how = f"the local directory, delete {self._directory / layout.REMOTE}"
        if steps and problem is not None:
            raise CheckpointMismatchError(
                problem,
                received=f"{self._directory} has a checkpoint of step {steps[-1]:,}; "
                f"{self._address} "
                + ("is another run" if claims else f"has no {NAME}"),
                hint=f'To continue from {how}. To start over, pass resume="never".',
            )
        # A start that committed nothing has not continued what is here.
        return behind and bool(self.remote.commits or not steps)

    def _follow(self, anew: bool) -> None:
        """Another machine has gone on, or the directory is new: the store is right."""
        if self.remote.claims is None:
            return  # nobody has begun: what is local, if anything, is the run
        if self._local().until is not None:  # nobody here went on with that
            replace(self._local(), until=None).write(self._directory)
        for step in layout.committed_steps(self._directory):
            path = self._directory / layout.committed_name(step)
            with contextlib.suppress(ManifestError):
                if self.remote.has(Checkpoint.read(path)):
                    continue
            reason = "another machine has continued this run"
            quarantine.move(path, "superseded", reason)
        if not anew:
            SideFiles(self.remote).get()


@contextlib.contextmanager
def explained(address: Address) -> Iterator[None]:
    """Turn what the store says while something is read into our own error."""
    try:
        yield
    except StoreError as error:
        raise refusals.unreachable(address, error) from None
