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
from resilient.storage.remote.claims import Claims
from resilient.storage.remote.far import Far
from resilient.storage.remote.near import Near
from resilient.storage.remote.objects import StoreError
from resilient.storage.remote.side_files import SideFiles

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
        self._mine, self._lock = False, threading.Lock()
        self._prepared: dict[int, Claims] = {}  # what a store that fails has not taken

    def look(self) -> None:
        """Make the local directory a copy, if the store is further ahead.

        Raises:
            CheckpointReadError: The store does not answer.
        """
        with explained(self._address):
            self._far.look()
            near = Near.read(self._directory, self._address)
            self._require_same_run(near, anew=False)
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
        self._mine, follows = False, False
        near = Near.read(self._directory, self._address)
        try:
            self._far.look()
            self._require_same_run(near, anew=anew)
            follows = not self._is_up_to_date()
            if follows and self._far.claims is not None:
                # It may be running. What it commits and deletes until its next commit
                # is refused would be unknown here.
                self._far.stop_others()
                self._far.look()
            if follows:
                self._follow(anew)
            self._claim()
        except StoreError as error:
            if follows or near is None or not layout.committed_steps(self._directory):
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
            self._far.look()
            if not self._is_up_to_date():
                self._far.require_mine()
            self._claim()
        elif self._near().until is not None:
            self._claim()

    def steps(self) -> set[int]:
        """Those in the store, without what was abandoned here."""
        with self._lock:
            until = self._near().until
        every = {*self._far.found, *self._far.unreadable}
        return {step for step in every if until is None or step <= until}

    def abandon_after(self, step: int) -> None:
        """What is after a step is no part of the run; ``settle`` tells the store."""
        with self._lock:
            near = self._near()
            until = step if near.until is None else min(step, near.until)
            replace(near, until=until).write(self._directory)

    def _claim(self) -> None:
        with self._lock:
            near = self._near()
            newest = max([*self._far.found, *self._far.unreadable], default=-1)
            at = newest if near.until is None else near.until
            mine = self._prepared.get(at) or self._far.prepare(at)
            self._prepared = {at: mine}
            near.claiming(mine.owner).write(self._directory)
        self._far.take(mine)
        self._prepared = {}
        with self._lock:
            now = self._near()
            until = None if now.until == near.until else now.until
            own = Near(near.address, [mine.owner], until, begun=True)
            own.write(self._directory)
        self._mine = True

    def _near(self) -> Near:
        known = Near.read(self._directory, self._address)
        return known or Near(str(self._address), [])

    def _is_up_to_date(self) -> bool:
        claims, near = self._far.claims, self._near()
        return not near.begun if claims is None else claims.owner in near.claims

    def _require_same_run(self, near: Near | None, *, anew: bool) -> None:
        steps = layout.committed_steps(self._directory)
        problem = None
        if near is None and self._far.claims is not None:
            problem = "The local directory has checkpoints of another run."
        elif near is not None and near.begun and self._far.claims is None:
            problem = "The object store no longer has anything of this run."
        if anew or not steps or problem is None:
            return
        raise CheckpointMismatchError(
            problem,
            received=f"{self._directory} has a checkpoint of step {steps[-1]:,}; "
            f"{self._address} " + ("is another run" if near is None else "is empty"),
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
