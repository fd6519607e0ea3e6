"""A run as a ``with`` block, for loops that do not use our iterators.

Importing this module loads neither Keras nor a backend.
"""

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from resilient.errors import ResilientError, require_integer
from resilient.saving.directory import OnDirectory
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    from resilient.training.loop.attempt import LoopAttempt
    from resilient.training.loop.position import LoopPlan


class RunContext(OnDirectory):
    """A run that can be entered.

    Args:
        plan: What the user asked for.
    """

    def __init__(self, plan: "LoopPlan") -> None:
        super().__init__(plan.options.store)
        self._plan = plan
        self._attempt: LoopAttempt | None = None
        self._session: contextlib.ExitStack | None = None

    @ending_at_user_line
    def __enter__(self) -> Self:
        """Lock the directory and restore its newest checkpoint.

        Raises:
            DirectoryInUseError: Another run is using the directory.
            CheckpointMismatchError: The checkpoint belongs to a different run.
            CorruptCheckpointError: There are checkpoints, but none is intact.
        """
        if self._attempt is not None:
            raise wrong_place_error("with", "Enter it once, and outside its loops.")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._open()).begin()
            self._session = stack.pop_all()
        return self

    @ending_at_user_line
    def __exit__(self, *error: Any) -> None:
        """Save, unless an error ended the block, and unlock the directory."""
        session, self._session = self._session, None
        assert session is not None
        if error[0] is not None:
            self._plan.position.inside = True
            session.__exit__(*error)
            return
        with session:
            self._require_attempt("with").end()

    @ending_at_user_line
    def advance(self, steps: int = 1) -> None:
        """Count steps done in a ``with`` block without ``loop``, and save if due.

        Raises:
            Preempted: The run stopped on request, and was saved.
        """
        require_integer(steps, "`steps`")
        attempt = self._require_attempt("advance")
        if attempt.in_loop:
            raise wrong_place_error(
                "advance", "loop and batches count their own steps."
            )
        attempt.advance(steps)

    @ending_at_user_line
    def save(self) -> None:
        """Save now; inside ``loop`` and ``batches``, after this batch.

        Raises:
            ResilientError: Called outside both ``with`` and a loop.
        """
        self._require_attempt("save").save()

    @ending_at_user_line
    def restore(self, step: int | None = None) -> Checkpoint:
        """Restore all objects to their state in a checkpoint.

        Inside ``with``, the run continues from there, and later checkpoints move to
        quarantine. Outside, it is only for inspection: the next loop still resumes from
        the newest checkpoint.

        Args:
            step: Which checkpoint; the newest intact one by default.

        Returns:
            The checkpoint.

        Raises:
            CheckpointNotFoundError: There is none, or none of that step.
            CheckpointMismatchError: It belongs to a different run; nothing was changed.
            ResilientError: Called inside a loop.
        """
        if self._attempt is not None:
            if self._attempt.in_loop:
                raise wrong_place_error(
                    "restore", "Call it before the loop or after it."
                )
            return self._attempt.go_back_to(step)
        from resilient.training.loop.start import inspect

        directory = self._store.directory
        with DirectoryLock(directory) if directory.is_dir() else nullcontext():
            return inspect(self._plan, step)

    @contextlib.contextmanager
    def _entered(self) -> "Iterator[LoopAttempt]":
        """This process's attempt: that of an enclosing ``with``, or a temporary one."""
        if self._attempt is None:
            with self._open() as attempt:
                yield attempt
            return
        if self._attempt.in_loop:
            raise wrong_place_error(
                "loop", "Let one loop of a Run end before the next."
            )
        yield self._attempt

    @contextlib.contextmanager
    def _open(self) -> "Iterator[LoopAttempt]":
        from resilient.training.loop.start import open_run

        with open_run(self._plan) as attempt:
            self._attempt = attempt
            try:
                yield attempt
            finally:
                self._attempt = None

    def _require_attempt(self, what: str) -> "LoopAttempt":
        if self._attempt is None:
            raise wrong_place_error(
                what, "Write `with run:` around it, or use run.loop."
            )
        return self._attempt


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for ``run.what``; ``todo`` says where it belongs."""
    name = "`with run`" if what == "with" else f"run.{what}"
    return ResilientError(f"{name} cannot be used here.", hint=todo)
