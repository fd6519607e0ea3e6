"""Answers questions about a run's checkpoint directory, for ``fit`` and for loops."""

from resilient import display
from resilient.errors import printable
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

    def __repr__(self) -> str:
        about = "; ".join(f"{name}: {text}" for name, text in self._about().items())
        return f"<{type(self).__name__} {printable(about)}>"

    def _about(self) -> dict[str, str]:
        """The most important facts; an error must not keep them from being shown."""
        where = {"directory": str(self._store)}
        try:
            found = self._store.checkpoints(only_readable=True)
        except OSError as error:
            return {**where, "checkpoints": f"cannot be read ({error.strerror})"}
        if not found:
            return {**where, "checkpoints": "none yet"}
        newest = found[-1]
        state = ", finished" if newest.finished else ""
        return {
            **where,
            "checkpoints": f"{len(found):,}, "
            f"{display.size(sum(each.nbytes for each in found))}",
            "newest": f"{newest.progress}{state}, saved {newest.created}",
            "metrics": display.metrics(newest.metrics) or "none",
        }

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
        """Where the time of all attempts went, according to ``events.jsonl``."""
        return goodput(self._store.directory)
