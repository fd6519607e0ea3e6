"""The experiment: run a script, run it again with random kills, compare the results."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path

from resilient.errors import ResilientError
from resilient.prove.moments import moments
from resilient.prove.proof import Kill, Options, Proof
from resilient.prove.reasons import Evidence, nothing_trained, reasons
from resilient.prove.recorded import (
    Difference,
    Recorded,
    first_difference,
    only_in_one,
    recorded,
)
from resilient.prove.script import Ending, Script
from resilient.prove.suspects import Suspect, seeds, suspects
from resilient.saving.compare import compare
from resilient.storage.store import Store
from resilient.training.trial import Trial

_SAVES = 3  # per kill, and in each run, so that there is something to resume from
_SHORTEST = 2.0  # seconds of training, so that kills hit it
_LAST = 0.99  # part of the training time: later, the script may have finished
_NAMED = 5  # lines of the script, or runs, that are named
_WARNING = re.compile(r"NotExactWarning: (.*(?:\n  .+)*)")


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
        self._trial, self._alone, self._status = options.trial, Recorded(()), 0

    def run(self) -> Proof:
        """Run the experiment.

        Raises:
            ResilientError: The script cannot be started, fails without a kill, or
                trains nothing that can be resumed.
        """
        proof = self.proof
        self._alone = alone = self._left_alone("alone", self._trial)
        trial = self._killable(self._trial, alone)
        if alone.rolled_back:  # how far back depends on the saves
            self._trial = trial
            self._alone = alone = self._left_alone("alone", trial)
        proof.steps = len(alone.order)
        for until in (_LAST, _LAST / 2):  # if it was faster this time, kill it sooner
            args = "killed", trial, until, alone, proof.kills
            killed, proof.failed = self._killed(*args)
            if proof.resumed or proof.failed is not None:
                break
        self._compare(killed)
        proof.over = True
        found = suspects(self._options.command)
        if not killed.entries and proof.failed is None:
            proof.reasons = [nothing_trained(found)]
        elif not proof.alike:
            self._explain(found)
        elif asks := [str(each) for each in found if each.kind in ("date", "files")]:
            proof.notes.append(
                "All runs here have the same date and find the same files, which the "
                f"script asks for: {'; '.join(asks[:_NAMED])}"
            )
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
                "The script did not draw data with resilient.fit or Run.loop."
                if trial.data_only
                else "The script did not train with resilient.fit or resilient.Run.",
                hint="Add --save to make each of its calls of model.fit resumable.",
            )
        if ending.status and name == "alone":
            self._status = ending.status
            self.proof.notes.append(
                f"Without training, the script fails with status {ending.status}: only "
                "what it draws before that was compared."
            )
        return found

    def _killable(self, trial: Trial, of: Recorded) -> Trial:
        """The same request, with saves often enough, and time, for the kills."""
        runs = Counter(place.run for place in of.order if not place.process)
        often = min(
            runs.total() // (_SAVES * self._options.kills),
            min(runs.values()) // _SAVES,
        )
        missing = _SHORTEST - (of.ended - of.entries[0].time)
        pause = max(0.0, missing / len(of.entries))
        return replace(trial, save_steps=max(1, often), pause=pause)

    def _killed(
        self,
        name: str,
        trial: Trial,
        until: float,
        of: Recorded,
        kills: list[Kill],
    ) -> tuple[Recorded, Ending | None]:
        """Kill the script at each moment, then let it finish; how it failed, if so."""
        directory, failed = self._fresh(name), None
        options = self._options
        when = moments(of, options.kills, options.seed, until=until)
        script = Script(options.command, directory, self._environment(trial))
        kills.clear()
        for number, moment in enumerate((*when, None), 1):
            last = moment is None
            told = "run to its end" if last else f"kill {number} of {len(when)}"
            self._stage(told)
            ending = script.run(moment, of.order, self._tick)
            if kills:
                kills[-1] = replace(kills[-1], after=ending)
            if ending.killed:
                kills.append(Kill(ending))
                self._show(self.proof)
                continue
            if ending.status != self._status:
                failed = ending
            break
        return recorded(directory), failed

    def _compare(self, killed: Recorded) -> None:
        proof = self.proof
        self._stage("comparing")
        proof.first = first_difference(self._alone, killed)
        if proof.failed is not None:
            return
        runs = {*self._alone.runs} ^ {*killed.runs}
        places = only_in_one(self._alone, killed)
        proof.missing = sorted(runs)
        proof.missing += [str(each) for each in places if each.run not in runs]
        anew = {*self._alone.runs} - proof.resumed
        if proof.resumed and anew:
            proof.notes.append(
                f"No kill was followed by a resume of {_listed(anew)}. Other seeds of "
                "the moments may hit it."
            )
        if self._options.trial.data_only:
            return
        for run in self._alone.runs:
            if run in killed.runs:
                self._compare_ends(run)
        left = {each.run for each in self._alone.order if each.at_end}
        if unseen := {*self._alone.runs} - left:
            proof.notes.append(
                f"How the script leaves the variables of {_listed(unseen)} was not "
                "compared: its process ended at once, as by os._exit."
            )

    def _compare_ends(self, run: str) -> None:
        """Compare the last checkpoints of a run, if both are of the same step."""
        proof = self.proof
        a, b = (Store(self._directory / name / run) for name in ("alone", "killed"))
        ends = [store.read(store.steps()[-1]) for store in (a, b) if store.steps()]
        finished = [each.step for each in ends if each.finished]
        if len(finished) == 1:
            proof.missing.append(f"the end of {run}")
        elif finished or (len(ends) == 2 and ends[0].step == ends[1].step):
            proof.ends[run] = compare(a, None, b, None)
        else:
            proof.notes.append(
                f"The training of {run} was left before its end, so there are no final "
                "checkpoints to compare; the states after each step were compared."
            )

    def _explain(self, found: list[Suspect]) -> None:
        """Find likely causes, with more runs."""
        proof, options = self.proof, self._options
        again = self._tried("again", self._trial)
        if again is None:
            return
        repeats = first_difference(self._alone, again)
        if options.trial.data_only:
            drawn, batches = True, repeats
            resumed = None if repeats else proof.first
        else:
            drawn, batches, resumed = self._data(repeats=repeats is None)
        proof.reasons = reasons(
            Evidence(
                proof.first,
                repeats,
                batches,
                resumed,
                drawn=drawn,
                warnings=_warnings(self._directory / "killed"),
                suspects=found,
                seeds=seeds(options.command),
            )
        )

    def _data(
        self, *, repeats: bool
    ) -> tuple[bool, Difference | None, Difference | None]:
        """Whether the data alone could be drawn, and where that differs.

        Without kills, if the script does not repeat, or else after them.
        """
        trial = replace(self._options.trial, data_only=True)
        one = self._tried("data", trial)
        if one is None:
            return False, None, None
        if not repeats:
            other = self._tried("data-again", trial)
            if other is None:
                return False, None, None
            return True, first_difference(one, other), None
        trial = self._killable(trial, one)
        found, _ = self._killed("data-killed", trial, _LAST, one, [])
        return True, None, first_difference(one, found)

    def _tried(self, name: str, trial: Trial) -> Recorded | None:
        """A run that may help to find the cause; None if it fails."""
        try:
            return self._left_alone(name, trial)
        except ResilientError:
            without = " without training" if trial.data_only else ""
            self.proof.notes.append(
                f"To find the cause, the script was run once more{without}, and failed."
            )
            return None

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


def _listed(runs: Set[str]) -> str:
    found = sorted(runs)
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def _warnings(directory: Path) -> list[str]:
    """What the script's processes warned would not be exact, each once."""
    found: dict[str, None] = {}
    for path in sorted(directory.glob("output-*.txt")):
        for match in _WARNING.finditer(path.read_text(errors="replace")):
            found[match[1].replace("\n ", "")] = None
    return list(found)
