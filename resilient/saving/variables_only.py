"""``resilient.Checkpoints``: variables alone, for loops that ``Run`` cannot serve.

The loop says when nothing is changing its variables, and what step it is at; a save
then holds every byte of them, and a restore sets all of them or none. Nothing else is
saved: neither the position of the data, nor random state, nor callbacks. ``fit`` saves
those.

Importing this module loads neither Keras nor a backend.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from resilient.backends import Backend, get_backend
from resilient.errors import CheckpointMismatchError, ResilientError, require_integer
from resilient.policies import keep_policy
from resilient.progress import Progress
from resilient.saving import choose, record
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Unchanged, commit
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.stores import store_of, wait_for_uploads
from resilient.telemetry.events import Events
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    from resilient.state.variables import Leaf


class Checkpoints:
    """Saves and restores variables; a context manager that locks the directory.

    .. code-block:: python

        variables = [*model.variables, *optimizer.variables]
        with resilient.Checkpoints("runs/own-loop", variables) as checkpoints:
            step = checkpoints.restore()
            while step < steps:
                step = train_some_steps(step)
                checkpoints.save(step)

    Args:
        checkpoint_dir: As in ``fit``; leaving the block waits for uploads.
        variables: Built Keras variables, or the backend's own. They are matched by
            order, shape and dtype, since Keras's automatic names differ between
            processes: pass the same variables in the same order each time.
        keep: How many checkpoints to keep.
    """

    @ending_at_user_line
    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        variables: Iterable[Any],
        *,
        keep: int = 3,
    ) -> None:
        self._store = store_of(checkpoint_dir)
        self._variables = list(variables)
        self._keep, self._unchanged = keep_policy(keep), Unchanged()
        self._opened = contextlib.ExitStack()
        self._events = Events(self._store.directory)
        self._opened_in: int | None = None  # which process; a forked one has no lock

    @ending_at_user_line
    def __enter__(self) -> "Checkpoints":
        """Lock the directory.

        Raises:
            DirectoryInUseError: Another run is using the directory.
        """
        self._opened.enter_context(self._store.opened())
        self._opened_in = os.getpid()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self._opened_in = None
        with self._opened:
            if error is None:
                wait_for_uploads(self._store)

    @ending_at_user_line
    def save(self, step: int) -> Checkpoint:
        """Commit a checkpoint of the variables' current values, and prune older ones.

        When it returns, the checkpoint is on disk. Nothing may change a variable until
        then: with a ``ClusterCoordinator``, call ``join`` first.

        Args:
            step: Steps done since the start of the run; it names the checkpoint.

        Raises:
            CheckpointWriteError: The file system failed; older checkpoints are intact.
            TypeError, ValueError: ``step`` is not a number of steps.
        """
        from resilient.state import fingerprint
        from resilient.state.variables import tensors as tensors_of

        step = require_integer(step, "save(step)", least=0, most=layout.LAST_STEP)
        backend, live = self._ready()
        tensors = tensors_of(live)
        run = VariablesRun(variables=[leaf.to_json() for leaf in live])
        progress = Progress(step, 0, step)
        snapshot = Snapshot(run, NOWHERE, backend.snapshot(tensors), progress)
        environment = fingerprint.environment(backend)
        checkpoint = commit(self._store, snapshot, environment, self._unchanged)
        self._events.emit("saved", **progress._asdict(), nbytes=checkpoint.nbytes)
        self._store.prune(self._keep)
        return checkpoint

    @ending_at_user_line
    def restore(self) -> int:
        """Set the variables to the newest intact checkpoint.

        Returns:
            Its step; 0 if there is no checkpoint yet, in which case nothing changes.

        Raises:
            CheckpointMismatchError: It holds different variables; nothing was changed.
            CheckpointNotFoundError: There were checkpoints, but they are gone.
            CorruptCheckpointError: There are checkpoints, but none is intact.
        """
        from resilient.state.layouts import differences
        from resilient.state.variables import LOOP, assign

        backend, live = self._ready()
        read = record.PartReader(backend)
        found = choose.find(self._store, "auto", read, self._events)
        if found is None:
            return 0
        checkpoint, saved = record.of_kind(found, VariablesRun)
        variables = saved.run.variables
        if different := differences(variables, live, groups=(LOOP,)):
            raise CheckpointMismatchError(
                f"{checkpoint.path} holds different variables. Nothing was changed.",
                received="\n  " + "\n  ".join(different),
                hint="Pass the same variables in the same order, all of them built, "
                "or use another checkpoint_dir.",
            )
        assign(backend, variables, live, saved.tensors)
        return checkpoint.step

    def _ready(self) -> "tuple[Backend, list[Leaf]]":
        from resilient.state.variables import leaves_of

        if self._opened_in != os.getpid():
            where = "outside a" if self._opened_in is None else "forked from inside the"
            raise ResilientError(
                "Use Checkpoints inside a `with` block, which locks the directory.",
                received=f"{self._store.directory}, {where} `with` block",
                hint="Write `with resilient.Checkpoints(...) as checkpoints:`.",
            )
        return get_backend(), leaves_of(self._variables)
