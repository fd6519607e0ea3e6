"""Where a run of a loop is, as this process knows: it outlasts one loop."""

from dataclasses import dataclass, field

from resilient.progress import Progress
from resilient.saving.record import Loaded
from resilient.training.loop.misuse import wrong_place_error


@dataclass
class LoopPosition:
    """Where the run is.

    Attributes:
        progress: Where the loop is.
        found: The checkpoint to put back when a loop begins that it belongs to.
        entered: Whether this process looked for one.
        inside: Whether a loop was begun that did not end by itself.
        done: Epochs of the loops that ended in this process.
        stopped: Whether the loop itself ended the run.
        counting: ``"loop"`` or ``"advance"``: how the run counts its steps.
    """

    progress: Progress = field(default=Progress(0, 0, 0))
    found: Loaded | None = None
    entered: bool = False
    inside: bool = False
    done: int = -1
    stopped: bool = False
    counting: str | None = None

    def count_by(self, counting: str) -> None:
        """Count steps in this way, and in no other: a resume would not find it.

        Raises:
            ResilientError: The run counts them in another way.
        """
        if self.counting not in (None, counting):
            raise wrong_place_error(
                counting, f"This run counts its steps by {self.counting}."
            )
        self.counting = counting

    def is_over(self, epochs: int) -> bool:
        """Whether nothing is left of a loop of so many epochs."""
        return self.stopped or self.progress.epoch >= epochs

    def ends(self, epochs: int) -> bool:
        """Whether the run is where a loop of so many epochs ends."""
        return (self.progress.epoch, self.progress.batch) == (epochs, 0)
