"""Forks attempts: ``python -m exact.server MODULE...`` imports the modules first."""

import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

for _name in sys.argv[1:]:  # torch must come before TensorFlow, or the process crashes
    import_module(_name)

# isort: split
from support import forking  # noqa: E402

from . import attempt  # noqa: E402

LOOK_EVERY = 0.002  # seconds


def answer(request: dict[str, Any]) -> list[int | str]:
    """Let processes live, one or several together: how each ended.

    A status is negative if a signal ended it; "too long" if that was ours.
    """
    living = {}
    for number, process in enumerate(request["processes"]):
        pid = os.fork()
        if pid == 0:
            os.environ |= process["environment"]
            log = Path(process["log"])
            forking.become(log, lambda: attempt.perform(request["order"]))
        living[pid] = number
    ends: list[int | str] = ["too long"] * len(living)
    until = time.monotonic() + request["limit"]
    while living and time.monotonic() < until:
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ends[living.pop(pid)] = os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_EVERY)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return ends


def warm_up() -> None:
    """Import what a first attempt had to, so that no later one has to."""
    with tempfile.TemporaryDirectory() as home:
        pid = os.fork()
        if pid == 0:
            order = {"row": "arrays", "home": home, "out": "record", "seed": 1}
            order |= {"plain": False, "kill": None}
            forking.become(Path(home, "log"), lambda: _imported(order))
        os.waitpid(pid, 0)
        modules = Path(home, "modules")
        for name in modules.read_text().split() if modules.exists() else ():
            import_module(name)


def _imported(order: dict[str, Any]) -> None:
    before = set(sys.modules)
    attempt.perform(order)
    names = set(sys.modules) - before
    ours = (name for name in names if name.startswith(("keras.", "resilient.")))
    Path(order["home"], "modules").write_text("\n".join(sorted(ours)))


if __name__ == "__main__":
    # A shell that starts us in the background would have attempts ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warm_up()
    forking.serve(answer)
