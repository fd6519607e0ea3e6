"""A checkpoint on its way into a training: compared, and then restored.

Both are done part by part, in one order that ``fit`` and ``Run`` share: the data, the
variables, the objects, and at last the random state, since restoring may draw. Nothing
is restored before everything was compared. Differences that rule out an exact resume
raise one error that lists them all; those that ``allow`` accepts warn, and so do
settings, which may be meant.

Where the data changes on purpose, arrays continue after as many samples as the epoch
has trained. Other data has no position that two datasets share: the new one starts
fresh with the next epoch.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from resilient.data.inputs import DataInputs
from resilient.errors import CheckpointMismatchError, warn_not_exact
from resilient.progress import Progress
from resilient.saving.record import SavedState
from resilient.saving.run_json import FitRun, RunJson
from resilient.serialization import JSON
from resilient.serialization.position import TrainingPosition
from resilient.serialization.schema import MalformedError
from resilient.state import variables
from resilient.state.comparison import SETTINGS, Difference
from resilient.storage.checkpoint import Checkpoint
from resilient.training.options import WINS, allowing

R = TypeVar("R", bound=RunJson)

# In ``Difference.of``: what concerns the data, and what changed while it trained.
OF_DATA = ("data", "batch_size")
IN_TRAINING = "training"
_OF_FITS = (
    "Undo the change in the script, use another checkpoint_dir (each phase of training "
    'needs its own; `resilient.enabled` gives it one), or pass resume="never" to start '
    "from scratch."
)
_OF_LOOPS = (
    "Pass the same data, and the same objects under the same names. Build them before "
    "the loop: call models on a batch, and test_on_batch on models compiled with "
    'metrics. Or use another checkpoint_dir, or pass resume="never" to start over.'
)
_IN_CALLBACKS = (
    " If a callback replaced the optimizer, loss or a metric, or froze layers: do so "
    "between two fits, or before the first batch of every attempt."
)
_INITIAL_EPOCH = (
    " A resume finds its epoch by itself: pass the initial_epoch of the first attempt, "
    "or none."
)
_MOST = 1000  # changes that a checkpoint records


class Moved(NamedTuple):
    """Where training continues.

    Attributes:
        progress: With the epoch's batches counted in the new batch size.
        position: Of the training data; None if it starts fresh.
    """

    progress: Progress
    position: TrainingPosition | None


class Changes:
    """The differences that a run accepts.

    Args:
        allow: The names that are allowed.
        before: What earlier attempts accepted.
        step: Where this attempt continues.

    Attributes:
        found: The names of the differences.
        fresh: The groups of variables that therefore start fresh.
        every: All changes of the run so far, as checkpoints record them.
    """

    def __init__(
        self, allow: Collection[str], before: Sequence[JSON], step: int
    ) -> None:
        self._fine, self._step = {*allow, SETTINGS}, step
        self.found: set[str] = set()
        self.fresh: set[str] = set()
        self.every = list(before)

    def refused(self, differences: Sequence[Difference]) -> list[Difference]:
        """The differences that are not allowed."""
        return [each for each in differences if each.of not in self._fine]

    def accept(self, differences: Sequence[Difference]) -> None:
        """Accept these, and warn about each once."""
        settings = [each.line for each in differences if each.of == SETTINGS]
        differences = [each for each in differences if each.of != SETTINGS]
        self.fresh |= {each.group for each in differences if each.group}
        known = {each["line"] for each in self.every if each["step"] == self._step}
        new = [each for each in differences if each.line[:1000] not in known]
        self.found |= {each.of for each in new}
        if settings:
            self.found.add(SETTINGS)
            warn_not_exact(
                "these settings changed since the checkpoint; training continues with "
                "those of this script",
                settings,
            )
        if new:
            self.every += [
                {"step": self._step, "of": each.of, "line": each.line[:1000]}
                for each in new
            ]
            del self.every[:-_MOST]
            warn_not_exact(
                f"the run continues from step {self._step:,} with changes that `allow` "
                "accepts",
                [f"{each.line} ({WINS[each.of]})" for each in new],
            )


@dataclass(frozen=True)
class Restorable:
    """A part of what a checkpoint holds.

    Attributes:
        differences: How it differs from this training's; changes nothing.
        restore: Sets it.
    """

    differences: Callable[[], list[Difference]]
    restore: Callable[[], None]


class Resume(Generic[R]):
    """What a training resumes from.

    Args:
        checkpoint: The checkpoint, verified.
        saved: What is in it.
        allow: What may differ.

    Attributes:
        changes: Differences that this run accepts.
        goes_on: Whether it continues although it had been stopped for good.
        moved: Where it continues, if in different data.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        saved: SavedState[R],
        allow: Collection[str],
    ) -> None:
        self.checkpoint, self.saved = checkpoint, saved
        self.changes = Changes(allow, saved.run.allowed, checkpoint.step)
        self.goes_on = "stopped" in allow
        self.moved: Moved | None = None

    @property
    def run(self) -> R:
        """Everything in the checkpoint that is neither a position nor a tensor."""
        return self.saved.run

    @property
    def progress(self) -> Progress:
        """Where this run continues, counted in its own batches."""
        return self.moved.progress if self.moved else self.checkpoint.progress

    def why_stopped(self, what: str, epochs: int) -> str:
        """Why its run was ended early, and how to go on; empty if it goes on now.

        Args:
            what: Ended it.
            epochs: How many this attempt is to train.
        """
        if not self.goes_on:
            at = f"epoch {self.progress.epoch:,} of {epochs:,}"
            return f': {what} ended it in {at}. Pass allow={{"stopped"}} to train on'
        self.changes.accept([Difference("stopped", f"{what} had ended the run")])
        return ""

    def cast_to(self, live: list[variables.Leaf]) -> list[variables.Leaf]:
        """These variables, to whose dtypes the saved values are cast from now on."""
        self.saved = self.saved.taken_by(live)
        return live

    def check(self, parts: Sequence[Restorable]) -> None:
        """Compare all parts.

        Raises:
            CheckpointMismatchError: Something differs that is not allowed.
        """
        found: list[Difference] = []
        for part in parts:
            found += part.differences()
            self.require_allowed(found)  # or the next would say the same, less clearly
        self.changes.accept(found)

    def restore(self, parts: Sequence[Restorable]) -> None:
        """Set all parts, which were compared."""
        for part in parts:
            part.restore()

    def require_allowed(
        self, found: Sequence[Difference], untouched: str = "Nothing"
    ) -> None:
        """Raise if anything differs that is not allowed.

        Args:
            found: The differences.
            untouched: What has not been changed.

        Raises:
            CheckpointMismatchError: Something does.
        """
        refused = self.changes.refused(found)
        if not refused:
            return
        hint = _OF_FITS if isinstance(self.run, FitRun) else _OF_LOOPS
        if any(each.of == IN_TRAINING for each in refused):
            hint += _IN_CALLBACKS
        if any(each.line.startswith("initial_epoch:") for each in refused):
            hint += _INITIAL_EPOCH
        raise CheckpointMismatchError(
            f"{self.checkpoint.path} belongs to a different run and cannot be resumed "
            f"exactly. {untouched} was changed.",
            received="\n  " + "\n  ".join(each.line for each in refused),
            hint=hint + allowing(refused),
        )

    def find_place(self, found: Sequence[Difference], theirs: JSON, ours: JSON) -> None:
        """Find where to continue in data that differs, if it may.

        Args:
            found: The differences.
            theirs: Facts about the data of the checkpoint.
            ours: Facts about this run's.

        Raises:
            CheckpointMismatchError: It may not, or there is no such place.
        """
        self.require_allowed(found)
        position = self.saved.positions().x
        if position is not None and any(each.of in OF_DATA for each in found):
            self.moved = moved(self.checkpoint.progress, position, theirs, ours)

    def move(self, inputs: DataInputs) -> None:
        """Make the next epoch start at the checkpoint's position in this run's data."""
        if self.moved is not None:
            inputs.move(self.moved.position)
        inputs.resume(self.progress.batch)


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
    # In a fit, and in a loop.
    limits = live.get("steps_per_epoch"), live.get("data steps_per_epoch")
    if old != new and progress.batch and limits != (None, None):
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


def _nowhere(why: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        "The data or its batch size cannot change at this point, in the middle of an "
        "epoch.",
        received=why,
        hint="Change it at the end of an epoch: pass resume=<step> with the step of "
        "a checkpoint at batch 0 (see `resilient ls`).",
    )
