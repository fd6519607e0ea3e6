"""The server that forks attempts, see ``support.forking``.

``python -m <package>.server MODULE...`` imports the modules first.
"""

import os
import select
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

for _name in sys.argv[1:]:  # torch must come before TensorFlow, or the process crashes
    import_module(_name)

# isort: split
import keras  # noqa: E402
from support import forking  # noqa: E402

from . import attempt  # noqa: E402

BEGUN = b"."


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Let an attempt live; its status, negative if a signal killed it."""
    order = attempt.Order.from_json(request["order"])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        forking.become(Path(request["log"]), lambda: _perform(order, writing))
    os.close(writing)
    timed_out = _wait(pid, reading, order.kill, request["limit"])
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status, "timed_out": timed_out}


def _perform(order: attempt.Order, writing: int) -> None:
    # Workers that it leaves behind live for seconds: they must not keep the pipe.
    null = os.open(os.devnull, os.O_RDONLY)
    os.register_at_fork(after_in_child=lambda: os.dup2(null, writing))
    attempt.perform(order, begun=lambda: os.write(writing, BEGUN))


def _wait(pid: int, reading: int, kill: str | None, limit: float) -> bool:
    """Wait for the child's end, which closes its pipe; kill it when its time is up.

    Returns:
        Whether it took longer than any attempt may.
    """
    delay = float(kill.split("@")[1]) if kill and kill.startswith("after@") else None
    if _readable(reading, limit) and os.read(reading, 1) == BEGUN:
        if not _readable(reading, limit if delay is None else delay):
            os.kill(pid, signal.SIGKILL)
            return delay is None
    elif not _readable(reading, 0):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _readable(reading: int, seconds: float) -> bool:
    return bool(select.select([reading], [], [], seconds)[0])


if __name__ == "__main__":
    backend = keras.backend.backend()
    forking.serve(answer, "training.fit.run", f"backends.{backend}")
