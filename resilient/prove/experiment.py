"""The experiment: run a script, run it again with random kills, compare the results."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resilient.errors import ResilientError
from resilient.prove.recorded import (
    Difference,
    Place,
    Recorded,
    first_difference,
    only_in_one,
    recorded,
)
from resilient.prove.script import Script, moments
from resilient.training.trial import Trial

_SAVES = 3  # per kill, and in each run, so that there is something to resume from
_SHORTEST = 2.0  # seconds of training, so that kills hit it


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        after: The last place that the script had recorded, or "nothing".
        resumed: Where it resumed when it was run again; empty: it did not train.
    """

    after: str
    resumed: str


@dataclass
class Proof:
    """What was found.

    Attributes:
        steps: Recorded states of the whole training.
        kills: The kills after which the script was run again.
        resumed: The runs that were killed, and trained on from a checkpoint.
        first: The first place at which the killed run differs.
        missing: The places that only one of the two recorded.
        failed: The status with which the script failed when it was run again.
        last_lines: The end of what it printed then.
        repeats: Whether the script repeats without a kill; None: unknown.
        alone: Where it does not.
        batches_repeat: Whether its batches do, after a kill if it does; None: unknown.
        batches: Where they do not.
        notes: What was not compared, and why.
    """

    steps: int = 0
    kills: list[Kill] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    first: Difference | None = None
    missing: list[str] = field(default_factory=list)
    failed: int | None = None
    last_lines: str = ""
    repeats: bool | None = None
    alone: Difference | None = None
    batches_repeat: bool | None = None
    batches: Difference | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        """Whether nothing that was compared differs."""
        return not (self.first or self.missing or self.failed)

    @property
    def equal(self) -> bool:
        """Whether it is proven: killed, resumed, and all that was compared is equal."""
        return bool(self.resumed) and self.alike


class Experiment:
    """Proves one script on one backend.

    Args:
        command: Starts the user's script.
        directory: An empty scratch directory.
        say: Called with a line about each stage.
        kills: How often the script is killed.
        seed: Chooses the moments of the kills.
        variables: Added to the script's environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        say: Callable[[str], object],
        *,
        kills: int,
        seed: int,
        variables: Mapping[str, str],
    ) -> None:
        self._command, self._directory, self._say = command, directory, say
        self._kills, self._seed, self._variables = kills, seed, variables

    def run(self) -> Proof:
        """Run the experiment.

        Raises:
            ResilientError: The script cannot be started, fails without a kill, or
                trains nothing that can be resumed.
        """
        self._say("Running the script without a kill.")
        trial, proof = Trial(), Proof()
        alone = self._alone("alone", trial)
        killable = self._killable(alone)
        if len(alone.entries) > len(alone.order):  # a rollback
            trial = killable  # how far back depends on the saves
            alone = self._alone("alone-again", trial)
        proof.steps = len(alone.order)
        killed = self._killed(killable, alone, proof)
        proof.first = first_difference(alone, killed)
        if not proof.failed:
            proof.missing = [str(each) for each in only_in_one(alone, killed)]
        anew = sorted(alone.runs - {*proof.resumed})
        if proof.resumed and anew:
            proof.notes.append(
                f"No kill was followed by a resume of {', '.join(anew)}. Another "
                "--seed may hit it."
            )
        if not proof.alike:
            self._say("Running it once more without a kill, to see whether it repeats.")
            self._explain(trial, alone, killed, proof)
        return proof

    def _alone(self, name: str, trial: Trial) -> Recorded:
        script = self._script(name, trial, {})
        ending = script.run()
        found = recorded(script.directory)
        if ending.status:
            raise ResilientError(
                f"The script fails even without a kill, with status {ending.status}.",
                received="\n  " + "\n  ".join(ending.last_lines.splitlines()[-15:]),
                hint="Fix it first: there is nothing to compare with.",
            )
        if not found.entries:
            raise ResilientError(
                "The script did not train with resilient.fit or resilient.Run.",
                hint="Add --save to make each of its calls of model.fit resumable.",
            )
        return found

    def _killable(self, of: Recorded) -> Trial:
        """A request for saves often enough, and time, for the kills."""
        runs = Counter(place.run for place in of.order if not place.process)
        often = min(
            runs.total() // (_SAVES * self._kills), min(runs.values()) // _SAVES
        )
        missing = _SHORTEST - (of.times[-1] - of.times[1])
        return Trial(max(1, often), max(0.0, missing / len(of.entries)))

    def _killed(self, trial: Trial, of: Recorded, proof: Proof) -> Recorded:
        """Kill the script at each moment, then let it finish."""
        when = moments(of, self._kills, self._seed)
        script, before = self._script("killed", trial, of.order), None
        resumed: set[str] = set()
        for moment in (*when, None):
            ending = script.run(moment)
            if before is not None:
                kill = Kill(str(before.reached or "nothing"), ending.resumed(before))
                then = f"resumed at {kill.resumed}" if kill.resumed else "did not train"
                proof.kills.append(kill)
                self._say(f"Kill {len(proof.kills)}: after {kill.after}; {then}.")
                resumed |= ending.went_on
            if not ending.killed:
                break
            before = ending
        proof.resumed = sorted(resumed)
        if ending.status:
            proof.failed, proof.last_lines = ending.status, ending.last_lines
        found = recorded(script.directory)
        if not found.entries and not proof.failed:
            raise ResilientError(
                "The script trained when it was run for the first time, but not when "
                "it was run again.",
                hint="It may look for a file that it wrote: remove that file at the "
                "start of the command.",
            )
        return found

    def _explain(
        self, trial: Trial, alone: Recorded, killed: Recorded, proof: Proof
    ) -> None:
        """Find whether the script repeats without a kill, and its batches."""
        try:
            again = self._alone("again", trial)
        except ResilientError:
            proof.notes.append("Once more without a kill, the script failed.")
            return
        proof.alone = first_difference(alone, again)
        proof.repeats = proof.alone is None
        other = killed if proof.repeats else again
        proof.batches = first_difference(alone, other, "batch")
        if (proof.first or not proof.repeats) and any(x.batch for x in alone.entries):
            proof.batches_repeat = proof.batches is None

    def _script(self, name: str, trial: Trial, order: Mapping[Place, int]) -> Script:
        directory = self._directory / name
        directory.mkdir()
        variables = {**self._variables, **trial.environment()}
        return Script(self._command, directory, variables, order)
