"""A process that has imported a backend and forks all processes of a gang on request.

``python gang_server.py`` takes gangs as JSON lines on stdin and answers, as
``kill.server`` does, and for its reasons: imports take most of a short attempt's time.
What a gang's processes start (TensorFlow's server, JAX's devices, torch's group), they
start after the fork.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import keras

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


def serve() -> None:
    """Answer requests until an empty line."""
    warnings.simplefilter("ignore")  # JAX warns of forks; no thread runs here yet
    import worker

    for name in (
        "training.fit.run",
        f"backends.{keras.backend.backend()}",
        "distributed.strategies.base",
    ):
        import_module(f"resilient.{name}")
    gc.freeze()  # or each attempt's first collection copies all of this process's pages
    print("ready", flush=True)
    while line := sys.stdin.readline().strip():
        request = json.loads(line)
        order = worker.Order.from_json(request["order"])
        gang = []
        for each in request["processes"]:
            pid = os.fork()
            if pid == 0:
                _become_worker(worker, order, each["environment"], Path(each["log"]))
            gang.append(Process(pid))
        print(json.dumps(_wait(gang, request["limit"])), flush=True)


def _become_worker(
    worker: Any, order: Any, environment: dict[str, str], log: Path
) -> None:
    """In the child: perform the order and never return."""
    status = 1
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((null, 0), (target, 1), (target, 2)):
            os.dup2(source, number)
        os.environ |= environment
        worker.perform(order)
        status = 0
    except SystemExit as end:
        status = int(str(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


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
    serve()
