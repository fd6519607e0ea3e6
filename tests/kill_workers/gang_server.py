"""The server that forks all processes of a gang at a time, see ``kill.forking``.

What a gang's processes start (TensorFlow's server, JAX's devices, torch's group), they
start after the fork.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import worker
from kill import forking

_LOOK_EVERY = 0.01  # seconds


@dataclass
class Process:
    """One of a gang: ``status`` is None while it lives."""

    pid: int
    status: int | str | None = None

    def look(self) -> None:
        pid, said = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return
        if os.WIFSTOPPED(said):
            self.status = "stopped"
        else:
            self.status = os.waitstatus_to_exitcode(said)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def answer(request: dict[str, Any]) -> list[int | str]:
    """Let a gang live; how each of it ended."""
    order = worker.Order.from_json(request["order"])
    gang = []
    for each in request["processes"]:
        pid = os.fork()
        if pid == 0:
            os.environ |= each["environment"]
            forking.become(Path(each["log"]), lambda: worker.perform(order))
        gang.append(Process(pid))
    return _wait(gang, request["limit"])


def _wait(gang: list[Process], limit: float) -> list[int | str]:
    """How each ended; those that sleep, or take too long, are ended."""
    until = time.monotonic() + limit
    while any(process.status is None for process in gang):
        for process in gang:
            if process.status is None:
                process.look()
        if time.monotonic() > until:
            break
        time.sleep(_LOOK_EVERY)
    for process in gang:
        if process.status is None:
            process.status = "too long"
        if isinstance(process.status, str):
            process.end()
    return [process.status for process in gang]


if __name__ == "__main__":
    backend = keras.backend.backend()
    modules = ("training.fit.run", f"backends.{backend}", "distributed.strategies.base")
    forking.serve(answer, *modules)
