"""A process that has imported a backend and forks attempts on request.

``python -m <package>.server MODULE...``: imports the modules, then takes orders as JSON
lines on stdin and gives answers as JSON lines on stdout. Forking saves each attempt the
seconds of importing. It is sound only because nothing was run here before: no tensor,
no thread, no random draw.
"""

import gc
import json
import os
import select
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

for _name in sys.argv[1:]:  # torch must come before TensorFlow, or the process crashes
    import_module(_name)

# isort: split
import keras  # noqa: E402

BEGUN = b"."


@dataclass(frozen=True)
class Answer:
    """How an attempt ended: its exit status, negative if a signal killed it."""

    status: int
    timed_out: bool = False


def serve() -> None:
    """Answer orders until an empty line."""
    warnings.simplefilter("ignore")  # JAX warns of forks; no thread runs here yet
    from . import attempt

    import_module("resilient.training.fit.run")
    import_module(f"resilient.backends.{keras.backend.backend()}")
    gc.freeze()  # or each attempt's first collection copies all of this process's pages
    print("ready", flush=True)
    # Not until the end of stdin: processes that others forked may keep it open.
    while line := sys.stdin.readline().strip():
        request = json.loads(line)
        order = attempt.Order.from_json(request["order"])
        log = Path(request["log"])
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _become_attempt(attempt, order, log, writing)
        os.close(writing)
        answer = _wait(pid, reading, order.kill, request["limit"])
        os.close(reading)
        print(json.dumps({"status": answer.status, "timed_out": answer.timed_out}))
        sys.stdout.flush()


def _become_attempt(attempt: Any, order: Any, log: Path, writing: int) -> None:
    """In the child: perform the order and never return."""
    status = 1
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((null, 0), (target, 1), (target, 2)):
            os.dup2(source, number)
        # Workers that it leaves behind live for seconds: they must not keep the pipe.
        os.register_at_fork(after_in_child=lambda: os.dup2(null, writing))
        attempt.perform(order, begun=lambda: os.write(writing, BEGUN))
        status = 0
    except SystemExit as end:
        status = int(str(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, reading: int, kill: str | None, limit: float) -> Answer:
    """Wait for the child's end, which closes its pipe; kill it when its time is up."""
    timed_out = False
    delay = float(kill.split("@")[1]) if kill and kill.startswith("after@") else None
    if _readable(reading, limit) and os.read(reading, 1) == BEGUN:
        if not _readable(reading, limit if delay is None else delay):
            os.kill(pid, signal.SIGKILL)
            timed_out = delay is None
    elif not _exited(reading):
        os.kill(pid, signal.SIGKILL)
        timed_out = True
    return Answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), timed_out)


def _readable(reading: int, seconds: float) -> bool:
    return bool(select.select([reading], [], [], seconds)[0])


def _exited(reading: int) -> bool:
    return _readable(reading, 0)


if __name__ == "__main__":
    serve()
