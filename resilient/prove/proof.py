"""A proof: what was asked, what is known so far, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilient.prove.reasons import Reason
from resilient.prove.recorded import Difference
from resilient.prove.script import Ending
from resilient.saving.compare import Comparison
from resilient.training.trial import Trial


@dataclass(frozen=True)
class Options:
    """What to prove, and how.

    Attributes:
        command: Starts the user's script.
        kills: How often it is killed.
        seed: Chooses the moments of the kills.
        trial: What the script's training does differently.
        variables: Added to the script's environment.
    """

    command: Sequence[str]
    kills: int = 5
    seed: int = 0
    trial: Trial = field(default_factory=Trial)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kill:
    """One kill, and where the script resumed.

    Attributes:
        ending: How the killed process ended.
        after: How the next process ended; None until then.
    """

    ending: Ending
    after: Ending | None = None

    @property
    def resumed(self) -> str:
        """Where the next process resumed, in words; empty if it did not train."""
        after, reached = self.after, self.ending.reached
        if after is None or (after.reached is None and not after.restored):
            return ""
        run = "" if reached is None else reached.run
        place = after.restored.get(run)
        if place is not None:
            count = after.repeated.get(run)
            return str(place) + (f", {count:,} batches repeated" if count else "")
        return f"the start of {run}" if run not in ("", ".") else "the start"

    @property
    def went_on(self) -> frozenset[str]:
        """The runs that then trained on from a checkpoint."""
        if self.after is None or self.ending.phase == "ended":
            return frozenset()
        return self.after.went_on


@dataclass
class Proof:
    """What is known so far.

    Attributes:
        options: What is being proven.
        stage: The current stage, in words; empty at the end.
        done: Recorded steps that the current stage has reached.
        steps: Recorded steps of the whole training; 0: not known yet.
        kills: The kills so far.
        ends: The two final checkpoints of each run, compared.
        missing: What only one of the two has: runs, their ends, places.
        first: The first place at which the killed run differs.
        reasons: Likely causes.
        notes: What was not compared, and why.
        failed: How the script failed when it was run again, if it did.
        over: Whether both runs are complete.
    """

    options: Options
    stage: str = ""
    done: int = 0
    steps: int = 0
    kills: list[Kill] = field(default_factory=list)
    ends: dict[str, Comparison] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    first: Difference | None = None
    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: Ending | None = None
    over: bool = False

    @property
    def alike(self) -> bool:
        """Whether nothing that was compared differs."""
        ends = all(each.equal for each in self.ends.values())
        return self.first is None and not self.missing and not self.failed and ends

    @property
    def resumed(self) -> frozenset[str]:
        """The runs that were killed, and trained on from a checkpoint."""
        return frozenset[str]().union(*(each.went_on for each in self.kills))

    @property
    def equal(self) -> bool:
        """Whether it is proven: killed, resumed, and all that was compared is equal."""
        return self.over and bool(self.resumed) and self.alike
