"""Finds where a run continues on different data or with a different batch size.

Arrays continue after as many samples as the epoch has trained. Other data has no
position that two datasets share: the new one starts fresh with the next epoch.
"""

from dataclasses import replace
from typing import NamedTuple

from resilient.errors import CheckpointMismatchError
from resilient.progress import Progress
from resilient.serialization import JSON
from resilient.serialization.position import TrainingPosition
from resilient.serialization.schema import MalformedError


class Moved(NamedTuple):
    """Where training continues.

    Attributes:
        progress: With the epoch's batches counted in the new batch size.
        position: Of the training data; None if it starts fresh.
    """

    progress: Progress
    position: TrainingPosition | None


def moved(
    progress: Progress, position: TrainingPosition, saved: JSON, live: JSON
) -> Moved:
    """A checkpoint's position in the data of this run.

    Args:
        progress: The checkpoint's progress.
        position: The position of its data.
        saved: The facts about that data, whose names begin with ``data``.
        live: The same facts about this run's data.

    Raises:
        CheckpointMismatchError: There is no such position.
    """
    if (saved.get("data kind"), live.get("data kind")) != ("arrays", "arrays"):
        if not progress.batch:
            return Moved(progress, None)
        raise _nowhere("only arrays can change in the middle of an epoch")
    old, new = saved.get("data batch_size"), int(live["data batch_size"])
    if not isinstance(old, int):
        raise MalformedError("no batch size of the data")
    samples = int(live["data samples"])
    length = -(-samples // new)
    if not progress.batch and not position.held:
        return Moved(progress, replace(position, num_batches=length, shortest=None))
    shuffles = saved.get("data shuffle"), live["data shuffle"]
    drawn = position.data.drawn * old
    if not progress.batch and (drawn or shuffles[0] != shuffles[1]):
        raise CheckpointMismatchError(
            "With steps_per_epoch, the data or its batch size cannot change at this "
            "point: the next epoch continues the same pass over the data.",
            received=f"{drawn:,} samples of this pass were already trained",
            hint="Continue without the change, or start a new run with these "
            "weights: pass start_from= and another checkpoint_dir.",
        )
    if drawn != progress.batch * old:
        raise _nowhere("with steps_per_epoch, epochs and passes over the data differ")
    if old != new and progress.batch and _has_steps(live):
        raise _nowhere("with steps_per_epoch, the batches of an epoch are all alike")
    if shuffles[0] != shuffles[1]:
        raise _nowhere("the rest of an epoch cannot be shuffled differently")
    if old != new and shuffles[0] == "batch":
        raise _nowhere('with shuffle="batch", each batch has its own order')
    if drawn % new:
        raise _nowhere(
            f"{drawn:,} samples of this epoch were already trained, which is not a "
            f"multiple of batch_size={new}"
        )
    if drawn >= samples:
        raise _nowhere(
            f"{drawn:,} samples of this epoch were already trained, and the data has "
            f"{samples:,}"
        )
    data = replace(position.data, drawn=drawn // new)
    position = replace(position, data=data, num_batches=length, shortest=None)
    return Moved(progress._replace(batch=drawn // new), position)


def _has_steps(live: JSON) -> bool:
    """Whether ``steps_per_epoch`` sets the number of batches in an epoch."""
    names = ("steps_per_epoch", "data steps_per_epoch")  # in a fit, and in a loop
    return any(live.get(name) is not None for name in names)


def _nowhere(why: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        "The data or its batch size cannot change at this point, in the middle of an "
        "epoch.",
        received=why,
        hint="Change it at the end of an epoch: pass resume=<step> with the step of "
        "a checkpoint at batch 0 (see `resilient ls`).",
    )
