"""Starts the processes of a gang, and ends them all, whatever happens."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import resilient
from resilient.supervise.environment import free_ports, of_process, ports_needed

_HERE = Path(__file__).parent
_OURS = [str(Path(resilient.__file__).parents[1]), str(_HERE), str(_HERE.parent)]

_TOLD = 4000  # characters of a process's output, in a failure


class Ended:
    """What is left of a gang: by rank, exit statuses and outputs."""

    def __init__(self, statuses, outputs):
        self.statuses, self.outputs = statuses, outputs

    def check(self):
        """Raise where a process failed, with the end of what each printed.

        What one printed that failed by itself, and was not killed for it, comes last.
        """
        if any(self.statuses):
            ranks = sorted(range(len(self.outputs)), key=lambda i: self.statuses[i])
            told = [f"rank {i}:\n{self.outputs[i][-_TOLD:]}" for i in ranks]
            raise AssertionError(f"{self.statuses}\n" + "\n".join(told))
        return self


def run(script, *arguments, world=2, timeout=120, **variables):
    """Run a Python script in `world` processes, until all ended.

    They are killed when one fails, or after `timeout` seconds.
    """
    path = os.pathsep.join([*_OURS, *sys.path])
    common = os.environ | {"PYTHONPATH": path} | variables
    command = [sys.executable, str(script), *map(str, arguments)]
    ports = free_ports(ports_needed(world))
    processes, files = [], []
    try:
        for rank in range(world):
            told = of_process(common, Path(os.devnull), rank, world, ports)
            files.append(tempfile.TemporaryFile())  # noqa: SIM115 -- closed by _text
            processes.append(
                subprocess.Popen(
                    command,
                    env=told,
                    stdout=files[-1],
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            )
        _wait(processes, time.monotonic() + timeout)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        outputs = [_text(file) for file in files]
    return Ended([process.returncode for process in processes], outputs)


def _wait(processes, until):
    """Until all ended, one failed, or it takes too long."""
    while time.monotonic() < until:
        statuses = [process.poll() for process in processes]
        if None not in statuses:
            return
        if any(statuses):
            until = min(until, time.monotonic() + 10)  # the others may tell why, too
        time.sleep(0.02)


def _text(file):
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")
