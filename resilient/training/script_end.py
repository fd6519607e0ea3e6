"""The variables as a script leaves them, recorded when its process ends.

``resilient prove`` compares them, too: what a script does after training, or a callback
in ``on_train_end``, is in no checkpoint.
"""

import atexit
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.backends.base import Backend
from resilient.forked import in_forked_child
from resilient.state.variables import Leaf, tensors
from resilient.telemetry.events import Events
from resilient.training import trial

if TYPE_CHECKING:
    from resilient.training.session import Session

Leaves = Callable[[], Sequence[Leaf]]

# The last training in each directory.
_runs: dict[Path, tuple[Events, Backend, Leaves]] = {}


def watch(session: "Session", leaves: Leaves) -> None:
    """Record these variables at the end of the process, if that is asked for.

    Args:
        session: Of their training.
        leaves: Lists them. What it refers to stays in memory.
    """
    asked = trial.current()
    if asked is not None and not asked.data_only:
        if not _runs and multiprocessing.parent_process() is not None:
            Finalize(None, _record, exitpriority=0)  # it may not run atexit's functions
        directory = session.options.store.directory
        _runs[directory] = session.events, session.backend, leaves


@atexit.register
def _record() -> None:
    if trial.current() is None:
        return
    from resilient.saving.digest import of_variables

    for events, backend, leaves in _runs.values():
        live = leaves()
        layout = [leaf.to_json() for leaf in live]
        found = of_variables(layout, backend.snapshot(tensors(live)).arrays)
        events.emit("left", digest=found.whole, names=found.names, leaves=found.leaves)


@in_forked_child
def _forget() -> None:
    _runs.clear()
