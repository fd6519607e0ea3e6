"""What a run of loops was given, and where it is. It outlives a single loop."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient.convert.start import StartFrom
from resilient.objects.adapters import Objects
from resilient.progress import Progress
from resilient.saving.record import SavedState
from resilient.saving.run_json import Counting, LoopRun
from resilient.storage.checkpoint import Checkpoint
from resilient.training.allowed import Changes
from resilient.training.loop.history import LogHistory
from resilient.training.loop.misuse import wrong_place_error
from resilient.training.options import RunOptions

# A verified checkpoint of a loop, and its contents.
Found = tuple[Checkpoint, SavedState[LoopRun]]


@dataclass
class LoopPosition:
    """Where the run is.

    Attributes:
        progress: Where the loop is.
        found: The checkpoint to restore when its loop begins.
        entered: Whether this process has looked for one.
        inside: Whether a loop has begun and not ended by itself.
        done: Epochs of the loops that have ended in this process.
        stopped: Whether the loop itself ended the run.
        counting: How the run counts its steps.
        changes: Differences from the checkpoint that this process accepts.
    """

    progress: Progress = field(default=Progress(0, 0, 0))
    found: Found | None = None
    entered: bool = False
    inside: bool = False
    done: int = -1
    stopped: bool = False
    counting: Counting | None = None
    changes: Changes | None = None

    def resume(self, found: Found, allow: frozenset[str]) -> None:
        """Continue from a checkpoint, with accepted differences."""
        self.changes = Changes(allow, found[1].run.allowed, found[0].progress)

    def count_by(self, counting: Counting) -> None:
        """Count steps in this way only: a resume could not follow a mixture.

        Raises:
            ResilientError: The run counts them in a different way.
        """
        if self.counting not in (None, counting):
            raise wrong_place_error(
                counting, f"This run already counts its steps with {self.counting}."
            )
        self.counting = counting

    def is_over(self, epochs: int) -> bool:
        """Whether a loop of this many epochs is complete."""
        return self.stopped or self.progress.epoch >= epochs

    def ends(self, epochs: int) -> bool:
        """Whether the run is exactly at the end of a loop of this many epochs."""
        return (self.progress.epoch, self.progress.batch) == (epochs, 0)


@dataclass(frozen=True)
class LoopPlan:
    """A run of loops.

    Attributes:
        options: The arguments of the run.
        objects: The objects passed by name.
        history: What the loop logs.
        verbose: Whether to print what happens.
        starts: Initial weights by model name, for a run that does not resume.
        standing: Where the run is.
    """

    options: RunOptions
    objects: Objects
    history: LogHistory
    verbose: int
    starts: Mapping[str, StartFrom]
    standing: LoopPosition = field(default_factory=LoopPosition)
