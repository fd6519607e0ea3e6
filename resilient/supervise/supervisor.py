"""Restarts a command until it finishes or restarting is pointless."""

import random
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from resilient.serialization.redaction import redacted_command
from resilient.supervise.failures import Ending
from resilient.supervise.launch import Launch, Shared
from resilient.supervise.options import Options


class Supervisor:
    """Runs a command until it is done; takes signals from now on."""

    def __init__(self, options: Options) -> None:
        self._shared = Shared(options)
        self.say = self._shared.stderr.say

    def run(self, missing: Callable[[], str] = str) -> int:
        """Supervise to the end.

        Args:
            missing: Says what a command that ended well left undone, if anything.

        Returns:
            The exit status of the last attempt, or that of a signal that ended the wait
            for the next one.
        """
        options = self._shared.options
        times = f" {options.nproc} times" if options.nproc > 1 else ""
        command = redacted_command(options.command)  # messages end up in logs
        self.say(f"Running{times}: {shlex.join(command)}")
        kinds: Counter[str] = Counter()
        ending, over = None, False
        while ending is None or not over:
            ending, reason = self._attempt(kinds.total() + 1)
            if ending.kind == "finished" and (undone := missing()):
                ending = Ending("error", undone, 1, final=True)
            kinds[ending.kind] += 1
            over = self._is_over(ending, reason)
            if not over:
                ending = self._pause(ending, kinds.total())
                over = ending.final
        said = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        self.say(f"Attempts: {kinds.total()} ({said}). Status: {ending.status}.")
        return ending.status

    def _attempt(self, number: int) -> tuple[Ending, str | None]:
        """Why an attempt ended, and why there must be no restart."""
        try:
            launch = Launch(self._shared)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            why = f"the command cannot be started: {error}"
            # A command that has started once may start again: memory may be short now.
            ending = Ending("not started", why, code, final=number == 1)
            return ending, self._shared.policy.after(ending)
        return launch.run()

    def _is_over(self, ending: Ending, reason: str | None) -> bool:
        """Whether there is no restart; says why not."""
        if ending.kind == "finished":
            return True
        if self._shared.stops or ending.final:
            self.say(f"No restart. {ending.kind.capitalize()}: {ending.why}.")
            return True
        if reason is not None:
            self.say(reason)
            about = {"kind": ending.kind, "status": ending.status}
            self._shared.emit("gave up", why=reason, **about)
        return reason is not None

    def _pause(self, ending: Ending, number: int) -> Ending:
        """Wait before a restart; a final ending if a signal cancels it."""
        delay = self._shared.policy.delay(random.random())
        what = f"{ending.kind.capitalize()}: {ending.why}."
        self.say(f"{what} Restart {number} in {delay:.1f} s.")
        until, stops = time.monotonic() + delay, self._shared.stops
        while not stops and (rest := until - time.monotonic()) > 0:
            stops += self._shared.wait(rest)
        if not stops:
            return ending
        why = f"{signal.Signals(stops[0]).name} arrived during the wait"
        status = 130 if stops[0] == signal.SIGINT else 143
        ending = replace(ending, why=why, status=status, final=True)
        self._is_over(ending, None)
        return ending
