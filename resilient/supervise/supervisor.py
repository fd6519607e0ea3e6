"""Restarts a command until it finishes or restarting is pointless."""

import random
import shlex
import signal
import time
from collections import Counter
from datetime import timedelta

from resilient.serialization.redaction import redacted_command
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
    """Runs a command until it is done."""

    def __init__(self, options: Options, output: Output, inbox: SignalQueue) -> None:
        self._options = options
        self._output = output
        self._journal = Journal(options.directory)
        self._tools = Tools(
            options=options,
            output=output,
            inbox=inbox,
            journal=self._journal,
            headway=Headway(),
            told=[],
            limits=[
                HangLimit(options.hang_timeout, options.startup_timeout)
                for _ in range(options.nproc)
            ],
        )
        self._policy = RestartPolicy(options)
        self._endings: Counter[str] = Counter()
        self._waited = 0.0
        self._began = time.monotonic()

    def run(self) -> int:
        """Supervise to the end.

        Returns:
            The exit status of the last attempt, or that of a signal that ended the wait
            for the next one.
        """
        options = self._options
        times = f" {options.nproc} times" if options.nproc > 1 else ""
        command = redacted_command(options.command)  # messages end up in logs
        self._output.say(f"Running{times}: {shlex.join(command)}")
        self._journal.emit("supervising", command=command, nproc=options.nproc)
        number = 0
        while True:
            number += 1
            ending, gain = self._attempt(number)
            self._endings[ending.kind] += 1
            code = self._code(ending, gain)
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
            # A command that has started once may start again: memory may be short now.
            return Ending("not started", why, code, final=number == 1), _NOTHING
        return attempt.run()

    def _code(self, ending: Ending, gain: Gain) -> int | None:
        """The exit status if this is the end; None for a restart."""
        say, emit = self._output.say, self._journal.emit
        if ending.kind == "finished":
            emit("finished", attempts=self._endings.total())
            return ending.status
        if self._tools.told or ending.final:
            say(f"No restart. {ending.kind.capitalize()}: {ending.why}.")
            why = "told to stop" if self._tools.told else ending.why
            emit("stopped", kind=ending.kind, why=why, status=ending.status)
            return ending.status
        reason = self._policy.after(ending, gain)
        if reason is None:
            return None
        say(reason)
        emit("gave up", kind=ending.kind, why=reason, status=ending.status)
        return ending.status

    def _pause(self, ending: Ending, number: int) -> int | None:
        """Wait before a restart; the exit status if a signal cancels it."""
        delay = self._policy.delay(random.random())
        what = f"{ending.kind.capitalize()}: {ending.why}."
        self._output.say(f"{what} Restart {number} in {delay:.1f} s.")
        self._journal.emit("restarting", restart=number, kind=ending.kind, delay=delay)
        now = start = time.monotonic()
        told = self._tools.told
        while not told and (left := start + delay - now) > 0:
            self._output.status = f"restart {number} in {left:.0f} s"
            told += self._tools.inbox.wait(min(left, POLL))
            now = time.monotonic()
        self._waited += now - start
        if not told:
            return None
        name = signal.Signals(told[0]).name
        self._output.say(f"No restart: {name} arrived during the wait.")
        code = 130 if told[0] == signal.SIGINT else 143
        self._journal.emit("stopped", kind=ending.kind, why=name, status=code)
        return code

    def _summary(self, ending: Ending, code: int) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self._endings.most_common())
        steps = self._tools.headway.steps
        time_in_all = timedelta(seconds=round(time.monotonic() - self._began))
        return "\n".join(
            [
                f"attempts: {self._endings.total():,}",
                f"endings: {kinds}",
                *(f"last step in {run}: {max(at, 0):,}" for run, at in steps.items()),
                f"time: {time_in_all}",
                f"waited for restarts: {timedelta(seconds=round(self._waited))}",
                f"last attempt: {ending.kind}: {ending.why}",
                f"exit status: {code}",
            ]
        )
