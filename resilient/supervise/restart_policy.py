"""Decides whether to restart, and how long to wait first.

The rules: the same failure at the same place without progress is a bug, which no
restart fixes; restarts that bring no newer checkpoint, or that train from scratch in
another directory, go in circles, whatever the failures; and the user may limit
restarts. Requested stops do not come here.
"""

from collections.abc import Sequence
from pathlib import Path

from resilient.errors import message
from resilient.supervise.failures import Ending
from resilient.supervise.options import Options
from resilient.telemetry.attempts import attempt_starts, read_attempts
from resilient.telemetry.heartbeat import Beat

_AGAIN = "Then run the same command again: it resumes from the last checkpoint."
_SAME_NAME = (
    "Give the run the same checkpoint_dir in every start: one without the time in it, "
    "and an absolute path where each start gets a new working directory."
)
_LONGEST = 300.0  # seconds to wait
_MANY = 64  # doublings: more would overflow


class RestartPolicy:
    """Applies the rules to one failure after another."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._newest: dict[Path | None, int] = {}  # checkpoint of each run
        self._restarts = -1  # the first start is not a restart
        self._fruitless = 0  # attempts in a row without a newer checkpoint
        self._anew = 0  # restarts in a row that began another run
        self._same = 0
        self._last: tuple[str, str | None, int | None] | None = None

    def after(
        self,
        ending: Ending,
        directory: Path | None = None,
        steps: Sequence[int] = (),
        anew: bool = False,
    ) -> str | None:
        """Record a failure.

        Args:
            ending: Why the attempt ended.
            directory: Its run, as a script may have several; None if unknown.
            steps: Its checkpoints.
            anew: Whether it began this run instead of resuming the one before.

        Returns:
            Why there must be no restart, in words; None to restart.
        """
        before, newest = self._newest.get(directory, -1), max(steps, default=-1)
        self._newest[directory] = max(newest, before)
        progress = newest > before
        self._restarts += 1
        self._fruitless = 0 if progress else self._fruitless + 1
        self._anew = self._anew + 1 if anew else 0
        this = (ending.kind, ending.signature, ending.step)
        again = this == self._last and ending.signature and not progress
        self._same, self._last = (self._same + 1 if again else 1), this
        return self._reason(ending)

    def delay(self, chance: float) -> float:
        """Seconds to wait before the next restart.

        It is random, up to a limit that doubles with each failure, so that many jobs
        killed together do not come back together.

        Args:
            chance: A random number from 0 to 1.
        """
        doublings = min(max(0, self._fruitless - 1), _MANY)
        return chance * min(_LONGEST, self._options.backoff * 2.0**doublings)

    def _reason(self, ending: Ending) -> str | None:
        options = self._options
        if ending.signature and self._same >= options.same_failure:
            times = f", {self._same} times in a row at the same place"
            what = ending.kind + (times if self._same > 1 else "")
            what += " and without progress"
            hint = f"Fix it: what it printed is above. {_AGAIN}"
        elif self._anew > 1:
            what = "two restarts in a row trained from scratch in a new directory"
            hint = _SAME_NAME
        elif min(self._fruitless, self._restarts) >= options.no_progress:
            what = (
                f"{options.no_progress} restarts in a row brought no newer checkpoint"
            )
            hint = f"Save more often, or raise --no-progress. {_AGAIN}"
        elif self._restarts == options.max_restarts:
            what = f"--max-restarts {options.max_restarts} allows no more restarts"
            hint = "Run the same command again to go on from the last checkpoint."
        else:
            return None
        return message(f"Gave up: {what}.", received=ending.why, hint=hint)


class Course:
    """Notices a restart that trains in a new directory instead of the interrupted one.

    A script may have several runs. So only the first directory that an attempt trains
    in is judged, and an attempt that got past it is not held against the script.
    """

    def __init__(self) -> None:
        self._interrupted: Path | None = None  # where the attempt before was
        self.start(0.0)

    def start(self, since: float) -> None:
        """Begin with an attempt; ``since``: when it starts, in Unix seconds."""
        self._since, self._judged = since, False
        self._anew: Path | None = None

    def turn(self, beat: Beat, over: bool = False) -> str:
        """Say once that the attempt trains in a new directory, if it does.

        Args:
            beat: The last sign of life.
            over: Whether the attempt is, however short its training was.
        """
        before, here = self._interrupted, Path(beat.directory)
        trains = beat.phase != "starting" if over else beat.phase == "training"
        if self._judged or not trains:
            return ""
        self._judged = True
        is_new = here != before and all(self._starts(here))
        if before is None or not is_new or any(self._starts(before)):
            return ""
        self._anew = here
        return (
            f"This attempt trains in a new directory, {here}; the one before was "
            f"interrupted in {before}. If that is the same training, it begins from "
            f"scratch. {_SAME_NAME}"
        )

    def end(self, beat: Beat | None) -> bool:
        """End with an attempt; whether it was interrupted in its new directory."""
        if beat is None:
            return False
        self._interrupted = None if beat.phase == "ended" else Path(beat.directory)
        return self._anew is not None and self._anew == self._interrupted

    def _starts(self, directory: Path) -> list[bool]:
        """Of each start of a run, whether it was in this attempt."""
        begun = attempt_starts(read_attempts(directory))
        return [each["started"] >= self._since for each in begun]
