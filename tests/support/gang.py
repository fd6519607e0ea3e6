"""Runs a script in one process or several, which are forked: see ``gang_server``."""

import atexit
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient.supervise.environment import free_ports, of_process

from .compiling import compile_once
from .forking import Client, environment

TOLD = 4000  # characters of a process's output, in a failure


@functools.cache
def _client() -> Client:
    """The server's: one for all tests of this process."""
    cache = tempfile.TemporaryDirectory()  # of compiled programs
    told = {name: value for name, value in environment().items() if name != "TF_CONFIG"}
    command = ["-m", "support.gang_server"]
    client = Client(command, told | compile_once(Path(cache.name, "0")))
    atexit.register(cache.cleanup)
    atexit.register(client.stop)
    return client


@dataclass
class Ended:
    """What is left of a gang: by rank, exit statuses and outputs.

    A status is negative if a signal killed the process; ``"stopped"`` where it sleeps,
    and ``"too long"`` where it had to be killed in the end.
    """

    statuses: list[int | str]
    outputs: list[str]

    def check(self, *expected: int) -> "Ended":
        """Raise where a process failed, with the end of what each printed.

        What one printed that failed by itself, and was not killed for it, comes last.

        Args:
            expected: How each should end, if not well.
        """
        if self.statuses != list(expected or [0] * len(self.statuses)):
            ranks = sorted(
                range(len(self.outputs)), key=lambda i: str(self.statuses[i])
            )
            told = [f"rank {i}:\n{self.outputs[i][-TOLD:]}" for i in ranks]
            raise AssertionError(f"{self.statuses}\n" + "\n".join(told))
        return self


def run(
    script: str | Path,
    *arguments: object,
    world: int = 2,
    timeout: float = 120,
    told: Mapping[str, str] | None = None,
    ends_at_once: bool = False,
) -> Ended:
    """Run a Python script in ``world`` processes that find each other.

    Args:
        script: Each runs it, with the same ``arguments``.
        arguments: Of the script.
        world: How many processes there are.
        timeout: Seconds, after which they are killed.
        told: Environment of all of them, beside what tells them of each other.
        ends_at_once: Whether they skip what Python and the backend do at the exit: with
            TensorFlow that takes ten seconds once another process is lost.
    """
    ports = free_ports(world + 2)
    each = [
        of_process(told or {}, Path(os.devnull), rank, world, ports)
        for rank in range(world)
    ]
    return run_with(
        each, script, *arguments, timeout=timeout, ends_at_once=ends_at_once
    )


def run_with(
    environments: Sequence[Mapping[str, str]],
    script: str | Path,
    *arguments: object,
    timeout: float,
    ends_at_once: bool = False,
) -> Ended:
    """Run a Python script in as many processes as there are environments."""
    with tempfile.TemporaryDirectory() as place:
        logs = [Path(place, str(rank)) for rank in range(len(environments))]
        request = {
            "script": str(script),
            "arguments": [str(each) for each in arguments],
            "processes": [
                {"log": str(log), "environment": dict(environment)}
                for log, environment in zip(logs, environments, strict=True)
            ],
            "limit": timeout,
            "ends_at_once": ends_at_once,
        }
        statuses = _client().ask(request)
        return Ended(statuses, [log.read_text(errors="replace") for log in logs])


def run_alone(
    script: str | Path, *arguments: object, timeout: float = 120
) -> tuple[int | str, str]:
    """Run a Python script in one process: how it ended, and what it printed."""
    ended = run_with([{}], script, *arguments, timeout=timeout)
    return ended.statuses[0], ended.outputs[0]
