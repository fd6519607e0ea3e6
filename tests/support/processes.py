"""Several processes of one training, without Keras: forked, connected, killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import resilient

PATHS = [Path(resilient.__file__).parents[1], Path(__file__).parents[1]]

# Process k of n; the body knows `group`, the `directory` they share, and what to do.
PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
from resilient.distributed.rendezvous import join
from support.shared_file import SharedFile

index, count, place, directory = sys.argv[1:]
directory = Path(directory)
strategy = SharedFile(int(index), int(count), Path(place))
with join(strategy, directory) as group, group.explained():
"""


class Process:
    """One of them."""

    def __init__(self, running: subprocess.Popen) -> None:
        self._running = running
        self.pid = running.pid

    def end(self, timeout: float = 60) -> tuple[int, str]:
        """Its exit status, and all that it printed."""
        out, _ = self._running.communicate(timeout=timeout)
        return self._running.returncode, out

    def line(self) -> str:
        """The next line that it prints."""
        return self._running.stdout.readline().strip()

    def send(self, signum: int) -> None:
        self._running.send_signal(signum)


@contextlib.contextmanager
def started(
    body: str, count: int, directory: Path, directories: list[Path] | None = None, **env
) -> Iterator[list[Process]]:
    """Start ``count`` processes that meet and then run ``body``."""
    lines = [f"    {line}" for line in body.strip().splitlines()]
    program = PROGRAM + "\n".join(lines)
    place = directory.with_suffix(".place")
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", program, str(index), str(count), str(place)),
                str((directories or [directory] * count)[index]),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
                "PYTHONUNBUFFERED": "1",
                **env,
            },
        )
        for index in range(count)
    ]
    try:
        yield [Process(each) for each in running]
    finally:
        for each in running:
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.communicate()
