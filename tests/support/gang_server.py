"""The server that forks all processes of a gang at a time, see ``forking``.

Each runs a script as Python would. What a gang's processes start (TensorFlow's server,
JAX's devices, torch's group), they start after the fork.
"""

import os
import runpy
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import keras

from . import forking

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
    gang = []
    for each in request["processes"]:
        pid = os.fork()
        if pid == 0:
            os.environ |= each["environment"]
            _live(Path(each["log"]), request)
        gang.append(Process(pid))
    return _wait(gang, request["limit"])


def _live(log: Path, request: dict[str, Any]) -> NoReturn:
    """In a child: run the script, and end at once, or as Python does."""
    if request["ends_at_once"]:
        forking.become(log, lambda: _run(request["script"], request["arguments"]))
    forking.redirect(log)
    _run(request["script"], request["arguments"])
    sys.exit()


def _run(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    if "jax" in sys.modules:
        _compile_once()
    runpy.run_path(script, run_name="__main__")


def _compile_once() -> None:
    """Let each process have a cache of its own for what it compiles.

    Only the first one writes to a cache, and it compiles other programs.
    """
    import jax
    from jax._src import compiler, distributed

    cache, rank = jax.config.jax_compilation_cache_dir, os.environ.get("RANK", "0")
    jax.config.update("jax_compilation_cache_dir", f"{cache}-{rank}")
    real, state = compiler._cache_write, distributed.global_state

    def write(*args: Any) -> None:
        number, state.process_id = state.process_id, 0
        try:
            real(*args)
        finally:
            state.process_id = number

    compiler._cache_write = write


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
