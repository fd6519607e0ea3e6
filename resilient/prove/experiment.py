"""The experiment: run a script, run it again with random kills, compare the results."""

import random
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from resilient.errors import ResilientError
from resilient.prove.reasons import Evidence, Reason, reasons
from resilient.prove.recorded import Difference, Recorded, first_difference, recorded
from resilient.prove.script import Ending, Script, moments
from resilient.prove.suspects import seeds, suspects
from resilient.saving.compare.compare import Comparison, compare
from resilient.storage.store import Store
from resilient.training.trial import Trial

_SAVES = 3  # per kill, so that there is something to resume from
_LAST = 0.99  # part of the training time: later, the script may have finished
_WARNING = re.compile(r"NotExactWarning: (.*(?:\n  .+)*)")


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
        resumed: Where the next process resumed, in words; empty until then.
    """

    ending: Ending
    resumed: str = ""


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
        missing: Runs (or batches) that only one of the two has.
        first: The first place at which the killed run differs.
        reasons: Likely causes.
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
    failed: Ending | None = None
    over: bool = False

    @property
    def equal(self) -> bool:
        """Whether all recorded states and the final checkpoints are the same."""
        ends = all(each.equal for each in self.ends.values())
        compared = bool(self.ends) or self.options.trial.data_only
        alike = self.first is None and not self.missing and not self.failed
        return self.over and bool(self.kills) and ends and compared and alike


class Experiment:
    """Proves one script on one backend.

    Args:
        options: What to prove.
        directory: An empty scratch directory.
        show: Called with the proof whenever it changes.
    """

    def __init__(
        self, options: Options, directory: Path, show: Callable[[Proof], None]
    ) -> None:
        self._options, self._directory, self._show = options, directory, show
        self.proof = Proof(options)
        self._alone = Recorded((), 0.0, 0.0, (), ())

    def run(self) -> Proof:
        """Run the experiment.

        Raises:
            ResilientError: The script cannot be started, fails without a kill, or
                trains nothing that can be resumed.
        """
        proof, options = self.proof, self._options
        self._alone = self._left_alone("alone", options.trial)
        proof.steps = len(self._alone.order)
        chosen = random.Random(options.seed)
        parts = sorted(chosen.uniform(0.0, _LAST) for _ in range(options.kills))
        killed = self._killed("killed", options.trial, parts)
        if not proof.kills and proof.failed is None:  # it was faster this time
            parts = [part / 2 for part in parts]
            killed = self._killed("killed", options.trial, parts)
        if proof.failed is None:
            self._compare(killed)
        else:
            proof.first = first_difference(self._alone, killed)
        proof.over = True
        if proof.kills and not proof.equal:
            self._explain(killed, parts)
        self._stage("")
        return proof

    def _left_alone(self, name: str, trial: Trial) -> Recorded:
        self._stage("left alone")
        directory = self._fresh(name)
        script = Script(self._options.command, directory, self._environment(trial))
        ending = script.run(None, {}, lambda _: None)
        found = recorded(directory)
        if ending.status and not (trial.data_only and found.entries):
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

    def _killed(self, name: str, trial: Trial, parts: Sequence[float]) -> Recorded:
        """Kill the script at each moment, then let it finish."""
        proof, order = self.proof, self._alone.order
        when = moments(self._alone, parts)
        directory = self._fresh(name)
        kills = max(1, len(when))
        each = replace(trial, save_steps=max(1, len(order) // (_SAVES * kills)))
        script = Script(self._options.command, directory, self._environment(each))
        for number, moment in enumerate((*when, None), 1):
            last = moment is None
            told = "run to its end" if last else f"kill {number} of {len(when)}"
            self._stage(told)
            ending = script.run(moment, order, self._tick)
            self._note_resumed(recorded(directory))
            if ending.killed:
                proof.kills.append(Kill(ending))
                self._show(proof)
                continue
            if ending.status and not trial.data_only:
                proof.failed = ending
            break
        return recorded(directory)

    def _note_resumed(self, found: Recorded) -> None:
        """Note where the process after the last kill resumed."""
        kills = self.proof.kills
        # The last one is that of the process that has just ended.
        if kills and not kills[-1].resumed and len(found.resumed) > len(kills):
            place = found.resumed[len(kills)]
            words = "the start" if place is None else str(place)
            kills[-1] = replace(kills[-1], resumed=words)

    def _compare(self, killed: Recorded) -> None:
        proof, directory = self.proof, self._directory
        self._stage("comparing")
        proof.first = first_difference(self._alone, killed)
        if self._options.trial.data_only:
            places = sorted(self._alone.order.keys() ^ killed.order.keys())
            proof.missing = [str(place) for place in places]
            return
        proof.missing = sorted({*self._alone.runs} ^ {*killed.runs})
        for run in self._alone.runs:
            a, b = (Store(directory / name / run) for name in ("alone", "killed"))
            if run not in proof.missing and (a.steps() or b.steps()):
                if bool(a.steps()) != bool(b.steps()):
                    proof.missing.append(run)
                    continue
                proof.ends[run] = compare(a, None, b, None)

    def _explain(self, killed: Recorded, parts: Sequence[float]) -> None:
        """Find likely causes, with more runs."""
        proof, options = self.proof, self._options
        batches = resumed = None
        again = self._left_alone("again", options.trial)
        repeats = first_difference(self._alone, again)
        if not options.trial.data_only:
            data = replace(options.trial, data_only=True)
            one = self._left_alone("data", data)
            if repeats is not None:
                batches = first_difference(one, self._left_alone("data-again", data))
            else:
                self._alone = one
                kills, proof.kills = proof.kills, []
                found = self._killed("data-killed", data, parts)
                proof.kills, resumed = kills, first_difference(one, found)
        elif repeats is not None:
            batches = repeats
        else:
            resumed = proof.first
        proof.reasons = reasons(
            Evidence(
                proof.first,
                repeats,
                batches,
                resumed,
                _warnings(self._directory / "killed"),
                suspects(options.command),
                seeds(options.command),
            )
        )

    def _fresh(self, name: str) -> Path:
        directory = self._directory / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory

    def _environment(self, trial: Trial) -> dict[str, str]:
        return {**self._options.variables, **trial.environment()}

    def _stage(self, stage: str) -> None:
        self.proof.stage, self.proof.done = stage, 0
        self._show(self.proof)

    def _tick(self, done: int) -> None:
        if done != self.proof.done:
            self.proof.done = done
            self._show(self.proof)


def _warnings(directory: Path) -> list[str]:
    """What the script's processes warned would not be exact, each once."""
    found: dict[str, None] = {}
    for path in sorted(directory.glob("output-*.txt")):
        for match in _WARNING.finditer(path.read_text(errors="replace")):
            found[match[1].replace("\n ", "")] = None
    return list(found)
