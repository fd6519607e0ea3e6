"""Records digests of the training state every so many steps, in the background."""

from typing import Any

from resilient.backends.base import HeldTensors
from resilient.progress import Progress
from resilient.saving.snapshot import Snapshot
from resilient.saving.writer import BackgroundWriter
from resilient.telemetry.events import Events
from resilient.training import trial


class StateDigests:
    """Records the digests of a session as events.

    A context: leaving it waits for the last one.

    Args:
        every: Steps between two digests; None: no digests.
        events: Where they are recorded.

    Attributes:
        wanted: Whether there are any.
    """

    def __init__(self, every: int | None, events: Events) -> None:
        self._every, self._events = every, events
        self.wanted = every is not None
        self._last: Progress | None = None
        self._writer = BackgroundWriter(self.process)
        self._names: tuple[str, ...] = ()  # of leaves, as recorded last
        self._spare: HeldTensors | None = None

    def __enter__(self) -> "StateDigests":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        with self._writer.closing(error):
            self.wait()

    def start(self, progress: Progress) -> bool:
        """Training begins here; whether to record the start, as for a new run, once."""
        first, self._last = self._last is None, progress
        return first and self._every is not None and not progress.step

    def due(self, progress: Progress) -> bool:
        """Whether a digest is due: a multiple of ``every`` was reached, or passed."""
        before, self._last = self._last, progress
        assert before is not None
        every = self._every
        return every is not None and progress.step // every > before.step // every

    def spare(self) -> HeldTensors | None:
        """Memory for the next snapshot, once the last one is not looked at any more."""
        self.wait()
        return self._spare

    def wait(self) -> None:
        """Return when the last digest is recorded."""
        self._writer.wait()

    def add(self, snapshot: Snapshot) -> None:
        """Compute the digest of a snapshot, in the background, and record it."""
        self._spare = snapshot.tensors
        self._writer.start(snapshot)
        trial.pause()

    def process(self, snapshot: Snapshot) -> None:
        """Record the digest of a snapshot, on the writer's thread; free its memory."""
        from resilient.saving.digest import digest

        try:
            found = digest(snapshot)
        finally:
            snapshot.tensors.release()
        known, self._names = found.names == self._names, found.names
        self._events.emit(
            "digest",
            **snapshot.progress._asdict(),
            digest=found.whole,
            leaves=found.leaves,
            **({} if known else {"names": found.names}),
        )

    def add_batch(self, progress: Progress, batch: Any) -> None:
        """Record the digest of a batch that was drawn, and not trained on."""
        from resilient.saving.digest import of_batch

        self._events.emit("digest", **progress._asdict(), digest=of_batch(batch))
        trial.pause()
