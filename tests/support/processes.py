"""Several processes of one training, without Keras: forked, connected, killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import resilient

# Process k of n; the body knows `group`, the `directory` they share, and what to do.
PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
from resilient.distributed.rendezvous import join

class Files:
    '''Stands for a parallel strategy: passes the text of process 0 through a file.'''

    host = "127.0.0.1"

    def __init__(self, index, count, place):
        self.index, self.count, self.place = index, count, Path(place)

    def broadcast(self, text):
        if self.index == 0:
            self.place.with_suffix(".part").write_text(text)
            self.place.with_suffix(".part").rename(self.place)
        while not self.place.exists():
            time.sleep(0.01)
        return self.place.read_text()

index, count, place, directory = sys.argv[1:]
directory = Path(directory)
with join(Files(int(index), int(count), place), directory) as group, group.explained():
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
                "PYTHONPATH": str(Path(resilient.__file__).parents[1]),
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
