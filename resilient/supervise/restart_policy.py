"""When to stop restarting, and what to tell whoever has to repair it.

Three rules: the same failure at the same place with no progress between is a bug, which
no restart repairs; restarts that bring no newer checkpoint go in circles, whatever the
failures; and the user may allow only so many. What was asked to stop is none of this.
"""

from dataclasses import dataclass

from resilient.errors import message
from resilient.supervise.failures import Ending
from resilient.supervise.headway import Gain

_TODO = {
    "out of memory": "Use a smaller batch or model, or a machine with more memory.",
    "diverged": "Look at the data of that step, lower the learning rate or clip "
    "gradients.",
    "killed": "Look for a bug in native code: its output is above.",
    "error": "Repair it: the output above has the traceback.",
}
_AGAIN = "Then run the same command again: it resumes from the last checkpoint."


@dataclass(frozen=True)
class Rules:
    """How patient to be.

    Attributes:
        same_failure: Stop when the same failure came so often in a row.
        no_progress: Stop after so many restarts in a row without newer checkpoint.
        max_restarts: Stop after so many restarts; None for no limit.
    """

    same_failure: int = 3
    no_progress: int = 10
    max_restarts: int | None = None


class RestartPolicy:
    """Applies the rules to one failure after the other.

    Attributes:
        restarts: Restarts so far, not counting the first start.
        failures: Failures in a row without any progress.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.restarts = -1
        self.failures = 0
        self._fruitless = 0
        self._same = 0
        self._last: tuple[str, str, int | None] | None = None

    def after(self, ending: Ending, made: Gain) -> str | None:
        """Take note of a failure.

        Returns:
            Why there must be no restart, for people; None to restart.
        """
        self.restarts += 1
        progress = made.step or made.checkpoint
        self.failures = 0 if progress else self.failures + 1
        self._fruitless += self.restarts > 0
        if made.checkpoint:
            self._fruitless = 0
        self._count_same(ending, made)
        if self._same >= self._rules.same_failure:
            return _same_failure(ending, self._same)
        if self._fruitless >= self._rules.no_progress:
            return _no_progress(ending, self._fruitless)
        most = self._rules.max_restarts
        if most is not None and self.restarts >= most:
            return _too_many(ending, self.restarts)
        return None

    def _count_same(self, ending: Ending, made: Gain) -> None:
        if ending.signature is None:
            self._last, self._same = None, 0
            return
        # Without an exact step the heartbeat tells of it, give or take some: whether
        # that is a bit more or less than the last time says nothing.
        progress = made.checkpoint or (made.step and ending.step is not None)
        this = (ending.kind, ending.signature, ending.step)
        self._same = self._same + 1 if this == self._last and not progress else 1
        self._last = this


def _same_failure(ending: Ending, times: int) -> str:
    what = (
        f"Gave up: {ending.kind}, {times} times in a row at the same place and without "
        "progress between, so another restart would not help."
        if times > 1
        else f"Gave up: {ending.kind}, and --same-failure 1 allows no other try."
    )
    todo = _TODO.get(ending.kind, _TODO["error"])
    return message(what, received=f"{ending.why}", hint=f"{todo} {_AGAIN}")


def _no_progress(ending: Ending, times: int) -> str:
    what = f"Gave up: {times} restarts in a row brought no newer checkpoint."
    todo = (
        "Save more often, remove what ends the training, or raise --no-progress. "
        f"{_AGAIN}"
    )
    return message(
        what, received=f"{ending.kind}, the last time: {ending.why}", hint=todo
    )


def _too_many(ending: Ending, times: int) -> str:
    what = f"Gave up: --max-restarts {times} allows no other restart."
    return message(
        what, received=f"{ending.kind}, the last time: {ending.why}", hint=_AGAIN
    )
