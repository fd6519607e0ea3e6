"""Starts a command again and again, until it finishes or there is no point in it."""

import random
import shlex
import signal
import time
from collections import Counter

from resilient.supervise import status
from resilient.supervise.failures import Ending
from resilient.supervise.hangs import HangLimit
from resilient.supervise.headway import Gain, Headway
from resilient.supervise.journal import Journal
from resilient.supervise.launch import POLL, Launch, Tools
from resilient.supervise.options import Options
from resilient.supervise.output import Output
from resilient.supervise.restart_policy import RestartPolicy
from resilient.supervise.signal_queue import SignalQueue

_NOTHING = Gain(step=False, checkpoint=False)


class Supervisor:
    """Runs a command until it is done.

    Args:
        options: What to run, and how patiently.
        output: Where to print.
        inbox: Where signals arrive.
    """

    def __init__(self, options: Options, output: Output, inbox: SignalQueue) -> None:
        limits = [
            HangLimit(options.hang_timeout, options.startup_timeout)
            for _ in range(options.nproc)
        ]
        self._options = options
        self._output = output
        self._tools = Tools(
            options=options,
            output=output,
            inbox=inbox,
            journal=Journal(options.directory),
            headway=Headway(),
            told=[],
            limits=limits,
        )
        self._journal = self._tools.journal
        self._give_up = RestartPolicy(options.rules)
        self._endings: Counter[str] = Counter()
        self._lost = 0.0
        self._began = time.monotonic()

    def run(self) -> int:
        """Supervise to the end.

        Returns:
            The exit status: that of the last attempt, or that of the signal which
            ended the wait for the next.
        """
        options = self._options
        times = f" {options.nproc} times" if options.nproc > 1 else ""
        self._output.say(f"Running{times}: {shlex.join(options.command)}")
        self._journal.emit("supervising", command=options.command, nproc=options.nproc)
        number = 0
        while True:
            number += 1
            ending, made = self._attempt(number)
            self._endings[ending.kind] += 1
            code = self._code(ending, made)
            if code is None:
                code = self._pause(ending, number)
            if code is not None:
                self._output.say(self._summary(ending, code))
                return code

    def _attempt(self, number: int) -> tuple[Ending, Gain]:
        try:
            attempt = Launch(self._tools, number)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            why = f"the command cannot be started: {error}"
            # What was started once is there: a lack of memory or room may pass.
            return Ending("not started", why, code, final=number == 1), _NOTHING
        return attempt.run()

    def _code(self, ending: Ending, made: Gain) -> int | None:
        """The exit status if this was the end; None for a restart."""
        say, emit = self._output.say, self._journal.emit
        if ending.kind == "finished":
            emit("finished", attempts=self._endings.total())
            return ending.status
        if self._tools.told or ending.final:
            say(f"No restart. {ending.kind.capitalize()}: {ending.why}.")
            why = "told to stop" if self._tools.told else ending.why
            emit("stopped", kind=ending.kind, why=why, status=ending.status)
            return ending.status
        reason = self._give_up.after(ending, made)
        if reason is None:
            return None
        say(reason)
        emit("gave up", kind=ending.kind, why=reason, status=ending.status)
        return ending.status

    def _pause(self, ending: Ending, number: int) -> int | None:
        """Wait before a restart; the exit status if a signal says there is none."""
        before = max(0, self._give_up.failures - 1)
        delay = self._options.backoff.delay(before, random.random())
        what = f"{ending.kind.capitalize()}: {ending.why}."
        self._output.say(f"{what} Restart {number} in {delay:.1f} s.")
        self._journal.emit("restarting", restart=number, kind=ending.kind, delay=delay)
        now = start = time.monotonic()
        told = self._tools.told
        while not told and (left := start + delay - now) > 0:
            self._output.status = f"restart {number} in {left:.0f} s"
            told += self._tools.inbox.wait(min(left, POLL))
            now = time.monotonic()
        self._lost += now - start
        if not told:
            return None
        name = signal.Signals(told[0]).name
        self._output.say(f"No restart: {name} came while waiting for it.")
        code = 130 if told[0] == signal.SIGINT else 143
        self._journal.emit("stopped", kind=ending.kind, why=name, status=code)
        return code

    def _summary(self, ending: Ending, code: int) -> str:
        rows = [("attempts", f"{self._endings.total():,}")]
        kinds = ", ".join(f"{n} {kind}" for kind, n in self._endings.most_common())
        rows.append(("endings", kinds))
        for directory, step in self._tools.headway.steps.items():
            rows.append((f"last step in {directory}", f"{max(step, 0):,}"))
        rows.append(("time", status.duration(time.monotonic() - self._began)))
        rows.append(("waited for restarts", status.duration(self._lost)))
        rows.append(("last attempt", f"{ending.kind}: {ending.why}"))
        rows.append(("exit status", str(code)))
        return "\n".join(f"{name}: {value}" for name, value in rows)
