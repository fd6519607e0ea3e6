"""What a run of loops was given, and where it is. It outlives a single loop."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from resilient.convert.start import StartFrom
from resilient.objects.adapters import Objects
from resilient.progress import Progress
from resilient.saving.record import Loaded, of_kind
from resilient.saving.run_json import Counting, LoopRun
from resilient.training.loop.context import wrong_place_error
from resilient.training.loop.history import LogHistory
from resilient.training.options import RunOptions
from resilient.training.resume import Changes, Resume


@dataclass
class LoopPosition:
    """Where the run is.

    Attributes:
        progress: Where the loop is.
        resume: The checkpoint to restore when its loop begins.
        entered: Whether this process has looked for one.
        inside: Whether a loop has begun and not ended by itself.
        done: Epochs of the loops that have ended in this process.
        stopped: Whether the loop itself ended the run.
        counting: How the run counts its steps.
        changes: Differences from the checkpoint that this process accepts.
    """

    progress: Progress = field(default=Progress(0, 0, 0))
    resume: Resume[LoopRun] | None = None
    entered: bool = False
    inside: bool = False
    done: int = -1
    stopped: bool = False
    counting: Counting | None = None
    changes: Changes | None = None

    def resume_from(self, found: Loaded, allow: Collection[str]) -> Resume[LoopRun]:
        """Continue from a checkpoint, with accepted differences."""
        self.resume = Resume(*of_kind(found, LoopRun), allow)
        self.changes = self.resume.changes
        return self.resume

    @property
    def is_alike(self) -> bool:
        """Whether it continues from a checkpoint, and nothing differs from its run."""
        return self.changes is not None and not self.changes.found

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
        position: Where the run is.
    """

    options: RunOptions
    objects: Objects
    history: LogHistory
    verbose: int
    starts: Mapping[str, StartFrom]
    position: LoopPosition = field(default_factory=LoopPosition)
