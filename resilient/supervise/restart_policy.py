"""Decides whether to restart, how long to wait first, and what to tell the user.

Three rules: the same failure at the same place without progress is a bug, which no
restart fixes; restarts that bring no newer checkpoint go in circles, whatever the
failures; and the user may limit restarts. Requested stops do not come here.
"""

from resilient.errors import message
from resilient.supervise.failures import Ending
from resilient.supervise.headway import Gain
from resilient.supervise.options import Options

_ADVICE = {
    "out of memory": "Use a smaller batch or model, or a machine with more memory.",
    "diverged": "Look at the data of that step, lower the learning rate or clip "
    "gradients.",
    "killed": "Look for a bug in native code: its output is above.",
}
_TRACED = "Fix it: the traceback is in the output above."
_UNTRACED = "Find out why it exits with this status."
_AGAIN = "Then run the same command again: it resumes from the last checkpoint."
_MANY = 64  # doublings: more would overflow, and every limit is reached long before


class RestartPolicy:
    """Applies the rules to one failure after another."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._restarts = -1  # the first start is not a restart
        self._failures = 0  # in a row without any progress
        self._fruitless = 0  # restarts in a row without a newer checkpoint
        self._same = 0
        self._last: tuple[str, str, int | None] | None = None

    def after(self, ending: Ending, gain: Gain) -> str | None:
        """Record a failure.

        Returns:
            Why there must be no restart, in words; None to restart.
        """
        self._restarts += 1
        self._failures = 0 if gain.step or gain.checkpoint else self._failures + 1
        self._fruitless += self._restarts > 0
        if gain.checkpoint:
            self._fruitless = 0
        self._count_same(ending, gain)
        if self._same >= self._options.same_failure:
            return _same_failure(ending, self._same)
        last = f"last time: {ending.kind}, {ending.why}"
        if self._fruitless >= self._options.no_progress:
            return message(
                f"Gave up: {self._fruitless} restarts in a row brought no newer "
                "checkpoint.",
                received=last,
                hint="Save more often, fix what ends the training, or raise "
                f"--no-progress. {_AGAIN}",
            )
        most = self._options.max_restarts
        if most is not None and self._restarts >= most:
            what = f"Gave up: --max-restarts {most} allows no more restarts."
            return message(what, received=last, hint=_AGAIN)
        return None

    def delay(self, chance: float) -> float:
        """Seconds to wait before the next restart.

        It is random, up to a limit that doubles with each failure, so that many jobs
        killed together do not come back together.

        Args:
            chance: A random number from 0 to 1.
        """
        doublings = min(max(0, self._failures - 1), _MANY)
        longest = self._options.backoff * 2.0**doublings
        return chance * min(self._options.max_backoff, longest)

    def _count_same(self, ending: Ending, gain: Gain) -> None:
        if ending.signature is None:
            self._last, self._same = None, 0
            return
        # Without an exact step there is only the heartbeat's, which is off by a few
        # steps: a slightly later step is not progress.
        progress = gain.checkpoint or (gain.step and ending.step is not None)
        this = (ending.kind, ending.signature, ending.step)
        self._same = self._same + 1 if this == self._last and not progress else 1
        self._last = this


def _same_failure(ending: Ending, times: int) -> str:
    what = (
        f"Gave up: {ending.kind}, {times} times in a row at the same place and "
        "without progress, so another restart would not help."
        if times > 1
        else f"Gave up: {ending.kind}, and --same-failure 1 allows no other attempt."
    )
    error = _TRACED if ending.traced else _UNTRACED
    todo = _ADVICE.get(ending.kind, error)
    return message(what, received=ending.why, hint=f"{todo} {_AGAIN}")
