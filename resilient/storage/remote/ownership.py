"""Makes a run in an object store this process's, and the local directory a copy of it.

The order of writes matters: the local directory records a new claim before the store
does, so after a kill at any moment it is known which of the two is further ahead.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from resilient.errors import CheckpointMismatchError
from resilient.storage import layout, quarantine, refusals
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import ManifestError
from resilient.storage.remote.address import Address
from resilient.storage.remote.claims import LocalCopy, new_id
from resilient.storage.remote.far import Far
from resilient.storage.remote.objects import StoreError
from resilient.storage.remote.uploader import SideFiles

logger = logging.getLogger(__name__)


class Ownership:
    """Whose a run is, near and far.

    Args:
        far: The run in the store.
        directory: The local directory, which this process has locked.
    """

    def __init__(self, far: Far, directory: Path) -> None:
        self._far, self._directory = far, directory
        self._address = far.objects.address
        self._mine, self._next, self._lock = False, new_id(), threading.Lock()

    def refresh(self) -> None:
        """Make the local directory a copy, if the store is further ahead.

        Raises:
            CheckpointReadError: The store does not answer.
        """
        with explained(self._address):
            self._far.refresh()
            self._check_same_run(anew=False)
            if not self._is_up_to_date():
                self._follow(anew=False)

    def take_over(self, anew: bool) -> None:
        """The same, and own the run from now on.

        Args:
            anew: Whether the run is about to be started over.

        Raises:
            CheckpointReadError: The store does not answer, and the local directory has
                nothing to go on from.
            CheckpointMismatchError: The two are of different runs.
        """
        follows = False
        known = LocalCopy.read(self._directory, self._address)
        try:
            self._far.refresh()
            self._check_same_run(anew=anew)
            follows = not self._is_up_to_date()
            if follows and self._far.claims is not None:
                # It may be running. What it commits and deletes until its next commit
                # is refused would be unknown here.
                self._far.stop_others()
                self._far.refresh()
            if follows:
                self._follow(anew)
            self._claim()
        except StoreError as error:
            if follows or known is None or not layout.committed_steps(self._directory):
                raise refusals.unreachable(self._address, error) from None
            logger.warning(
                "The object store does not answer: %s. The run continues from %s, "
                "and is uploaded once the store answers.",
                error,
                self._directory,
            )

    def settle(self) -> None:
        """Before each upload: do what could not be done before, if anything.

        Raises:
            DirectoryInUseError: Another run has taken over meanwhile.
            StoreError: The store still fails.
        """
        if not self._mine:
            self._far.refresh()
            if not self._is_up_to_date():
                self._far.check_mine()
        if not self._mine or self._local().until is not None:
            self._claim()

    def steps(self) -> set[int]:
        """Those in the store, without what was abandoned here."""
        with self._lock:
            until = self._local().until
        return {s for s in {**self._far.found} if until is None or s <= until}

    def abandon_after(self, step: int) -> None:
        """What is after a step is no part of the run; ``settle`` informs the store."""
        with self._lock:
            local = self._local()
            until = step if local.until is None else min(step, local.until)
            replace(local, until=until).write(self._directory)

    def _claim(self) -> None:
        with self._lock:
            local = self._local()
            local.claiming(self._next).write(self._directory)
        newest = max(self._far.found, default=-1)
        self._far.take(self._next, newest if local.until is None else local.until)
        with self._lock:
            now = self._local()
            until = None if now.until == local.until else now.until
            claims = [self._next]
            LocalCopy(now.address, claims, until, begun=True).write(self._directory)
        self._mine, self._next = True, new_id()

    def _local(self) -> LocalCopy:
        known = LocalCopy.read(self._directory, self._address)
        return known or LocalCopy(str(self._address), [])

    def _is_up_to_date(self) -> bool:
        claims, local = self._far.claims, self._local()
        return not local.begun if claims is None else claims.owner in local.claims

    def _check_same_run(self, *, anew: bool) -> None:
        known = LocalCopy.read(self._directory, self._address)
        steps = layout.committed_steps(self._directory)
        problem = None
        if known is None and self._far.claims is not None:
            problem = "The local directory has checkpoints of another run."
        elif known is not None and known.begun and self._far.claims is None:
            problem = "The object store no longer has anything of this run."
        if anew or not steps or problem is None:
            return
        raise CheckpointMismatchError(
            problem,
            received=f"{self._directory} has a checkpoint of step {steps[-1]:,}; "
            f"{self._address} " + ("is another run" if known is None else "is empty"),
            hint=f"To continue from the object store, delete {self._directory} or "
            'pass another local_dir. To start over, pass resume="never".',
        )

    def _follow(self, anew: bool) -> None:
        """Another machine has gone on, or the directory is new: the store is right."""
        if self._far.claims is None:
            return  # nobody has begun: what is near, if anything, is the run
        for step in layout.committed_steps(self._directory):
            path = self._directory / layout.committed_name(step)
            with contextlib.suppress(ManifestError):
                if self._far.has(Checkpoint.read(path)):
                    continue
            reason = "another machine has continued this run"
            quarantine.move(path, "superseded", reason)
        if not anew:
            SideFiles(self._far.objects, self._directory).get(self._far.names)


@contextlib.contextmanager
def explained(address: Address) -> Iterator[None]:
    """Turn what the store says while something is read into our own error."""
    try:
        yield
    except StoreError as error:
        raise refusals.unreachable(address, error) from None
