"""A run as a ``with`` block: for loops without an iterator of ours.

Importing this module loads neither Keras nor a backend.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from resilient.saving import choose
from resilient.saving.directory import OnDirectory
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.training.loop.misuse import misplaced, require_count

if TYPE_CHECKING:
    from resilient.training.loop.attempt import Life
    from resilient.training.loop.start import Plan


class Block(OnDirectory):
    """A run that can be entered.

    Args:
        plan: What it was asked for.
    """

    def __init__(self, plan: "Plan") -> None:
        super().__init__(plan.store)
        self._plan = plan
        self._life: Life | None = None
        self._around: contextlib.ExitStack | None = None

    def __enter__(self) -> Self:
        """Take the directory and go back to its newest checkpoint.

        Raises:
            DirectoryInUseError: Another run is using the directory.
            CheckpointMismatchError: The checkpoint is of another run.
            CorruptCheckpointError: There are checkpoints and none is intact.
        """
        if self._life is not None:
            raise misplaced("with", "Enter it once, and outside of its loops.")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._living()).begin()
            self._around = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save where it ended, unless by an error, and leave the directory."""
        around, self._around = self._around, None
        assert around is not None
        if error is not None:
            self._plan.standing.inside = True
            around.__exit__(kind, error, trace)
            return
        with around:
            self._require_life("with").end()

    def advance(self, steps: int = 1) -> None:
        """So many steps were done, in a ``with`` block without ``loop``; save if due.

        Raises:
            Preempted: The run was asked to stop, and is saved.
        """
        require_count("steps", steps)
        life = self._require_life("advance")
        if life.in_loop:
            raise misplaced("advance", "loop and batches count their steps themselves.")
        life.advance(steps)

    def save(self) -> None:
        """Save now; within ``loop`` and ``batches``, once this batch is done.

        Raises:
            ResilientError: Neither within ``with`` nor within a loop.
        """
        self._require_life("save").save()

    def restore(self, step: int | None = None) -> Checkpoint:
        """Set all objects to a checkpoint.

        Within ``with``, the run goes on from there, and later checkpoints are put into
        quarantine. Outside, it is to look at them: the next loop resumes from the
        newest checkpoint all the same.

        Args:
            step: Which checkpoint; the newest intact one by default.

        Returns:
            The checkpoint.

        Raises:
            CheckpointNotFoundError: There is none, or none of that step.
            CheckpointMismatchError: It is of another run; nothing was changed.
            ResilientError: Within a loop.
        """
        from resilient.training.loop.start import contents_of, reader_of

        if self._life is not None:
            if self._life.in_loop:
                raise misplaced("restore", "Call it before the loop, or after it.")
            return self._life.go_back_to(step)
        directory, reader = self._store.directory, reader_of(self._plan)
        if not directory.is_dir():
            raise choose.not_found(directory)
        with DirectoryLock(directory):
            if step is None:
                checkpoint, saved = choose.newest(self._store, reader)
            else:
                checkpoint, saved = self._store.load(step, reader)
        contents = contents_of(self._plan)
        contents.require_fits(checkpoint, saved)
        contents.put_back_objects(saved)
        return checkpoint

    @contextlib.contextmanager
    def _entered(self) -> "Iterator[Life]":
        """This process's life on the run: that of a ``with`` around, or one for now."""
        if self._life is None:
            with self._living() as life:
                yield life
            return
        if self._life.in_loop:
            raise misplaced("loop", "Let one loop of a Run end before the next.")
        yield self._life

    @contextlib.contextmanager
    def _living(self) -> "Iterator[Life]":
        from resilient.training.loop.start import living

        layout.make_directory(self._store.directory)
        with living(self._plan) as life:
            self._life = life
            try:
                yield life
            finally:
                self._life = None

    def _require_life(self, what: str) -> "Life":
        if self._life is None:
            raise misplaced(what, "Write `with run:` around it, or use run.loop.")
        return self._life
