"""Words the lines that a user reads when training starts or goes back."""

import time

from resilient.progress import Progress
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.storage.stores import place
from resilient.telemetry.events import LastAttempt

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def new_run(store: Store, saves: str) -> str:
    """Describe the start of a new run, which is saved as often as ``saves`` says."""
    return f"Saving to {store} {saves}; kill it at any time and run it again."


def resumed(
    store: Store,
    checkpoint: Checkpoint,
    at: Progress,
    last: LastAttempt | None,
    seconds: float,
) -> str:
    """Describe a resume.

    Args:
        store: Where the run is saved.
        checkpoint: The checkpoint.
        at: Where training continues.
        last: The attempt before this one, if it is to be described.
        seconds: How long restoring took.
    """
    line = f"Resumed at {at} from {place(store, checkpoint)}"
    if last is None:
        return line
    return f"{line}\n{ending(last, at.step)}. Restored in {seconds:.2f} s."


def nothing_left(at: Progress, where: str = "") -> str:
    """Describe a run that is complete; ``where`` is the place of its checkpoint."""
    return f"Nothing left to train at {f'step {at.step:,} of {where}' if where else at}"


def rolling_back(step: int, why: str) -> str:
    """Describe a rollback from a bad batch."""
    return f"At batch {step:,} {why}: rolling back."


def ending(last: LastAttempt, resumed: int, now: float | None = None) -> str:
    """Describe how an attempt ended, and what of it is trained again.

    Args:
        last: The attempt.
        resumed: The step at which the run resumes.
        now: The time, in Unix seconds.
    """
    seconds = max(0.0, (time.time() if now is None else now) - last.time)
    line = f"The last attempt {last.how} {_ago(seconds)}"
    if last.step is None or last.step < resumed:
        return line
    about = "" if last.certain else "about "
    line += f" at {about}step {last.step:,}"
    lost = last.step - resumed
    batches = "batch" if lost == 1 else "batches"
    return f"{line}: {about}{lost:,} {batches} will be trained again" if lost else line


def _ago(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit} ago"
    return f"{seconds:,.0f} s ago"
