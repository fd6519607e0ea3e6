"""Starts the processes of one attempt together, and ends them together.

None can train without the others: when one fails, the others are asked to end, get some
time to save, and are then killed.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from resilient.supervise import environment
from resilient.supervise.daemons import end_daemons
from resilient.supervise.processes import Process

_DUMP = 10.0  # seconds to print stack traces
# Waits a number of seconds, or until a condition holds.
Wait = Callable[[float, Callable[[], bool]], None]


class ProcessGroup:
    """Processes that run the same command.

    Args:
        command: What to run.
        nproc: How many processes of it.
        variables: Variables to add to our environment, for each process.

    Raises:
        OSError: If one of them cannot be started; none is left running.
    """

    def __init__(
        self, command: Sequence[str], nproc: int, variables: Mapping[str, str]
    ) -> None:
        # A new directory for each attempt: an old heartbeat cannot pass for a new one.
        self._signs = tempfile.TemporaryDirectory(
            prefix="resilient-", ignore_cleanup_errors=True
        )
        ports = environment.free_ports(environment.ports_needed(nproc))
        self.members: list[Process] = []
        try:
            for rank in range(nproc):
                sign = Path(self._signs.name) / f"heartbeat-{rank}"
                base = {**os.environ, **variables}
                its_own = environment.of_process(base, sign, rank, nproc, ports)
                self.members.append(Process(command, its_own, sign, rank))
        except BaseException:
            self.kill()
            self.clean_up()
            self.close()
            raise

    def over(self) -> bool:
        """Whether all have ended."""
        return all(member.returncode is not None for member in self.members)

    def failed(self) -> Process | None:
        """One that failed; among several, preferably one that a signal killed."""
        codes = [(member.returncode or 0, member) for member in self.members]
        failed = [(code, member) for code, member in codes if code]
        # The death of one makes the others fail with connection errors.
        return min(failed, key=lambda each: each[0] > 0)[1] if failed else None

    def send(self, signum: int) -> None:
        for member in self.members:
            member.send(signum)

    def kill(self) -> None:
        for member in self.members:
            if member.returncode is None:
                member.kill()

    def stop(self, signum: int, grace: float, wait: Wait) -> None:
        """Ask the remaining ones to end, then kill them after some seconds."""
        self.send(signum)
        wait(grace, self.over)
        self.kill()

    def abort(self, wait: Wait) -> None:
        """Make all print stack traces and die; a hang rarely concerns just one."""
        for member in self.members:
            member.abort()
        wait(_DUMP, self.over)
        self.kill()

    def clean_up(self) -> bool:
        """Wait for all, and end what they left behind; whether any was killed."""
        for member in self.members:
            member.wait()
        left = [member.clean_up() for member in self.members]
        return any([*left, end_daemons(Path(self._signs.name))])

    def close(self) -> None:
        """Remove the heartbeat files."""
        self._signs.cleanup()
