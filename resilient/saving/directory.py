"""What a checkpoint directory can tell, for ``fit`` and for loops."""

from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.telemetry.goodput import Goodput, goodput


class OnDirectory:
    """A run's directory.

    Args:
        store: Its checkpoints.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints, oldest first."""
        return self._store.checkpoints()

    @property
    def latest(self) -> Checkpoint | None:
        """The newest committed checkpoint, if there is one."""
        return next(reversed(self.checkpoints), None)

    @property
    def goodput(self) -> Goodput:
        """Where the time of all attempts went, by ``events.jsonl``."""
        return goodput(self._store.directory)
