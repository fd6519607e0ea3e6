"""A process that has imported a backend and forks others on request, and its client.

Requests and answers are JSON lines on stdin and stdout. Forking saves each process the
seconds of importing. It is sound only because nothing was run here before: no tensor,
no thread, no random draw.
"""

import gc
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "random",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def environment() -> dict[str, str]:
    """This process's environment, quiet, on one thread, with its import path."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return os.environ | QUIET | {"PYTHONPATH": paths}


class Client:
    """Asks a server, which is started by the first request.

    Args:
        command: Arguments of Python that start it.
        environment: Of the server, and so of all that it forks.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(self._line())

    def _start(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(
            [sys.executable, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        assert self._line() == "ready\n"
        return self._process

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the fork server died; its stderr says why"
        return line

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate("\n")


def serve(answer: Callable[[dict[str, Any]], Any], *modules: str) -> None:
    """Answer requests until an empty line; ``modules`` of ours are imported before."""
    # JAX warns of forks; no thread runs here yet.
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    for name in modules:
        import_module(f"resilient.{name}")
    gc.freeze()  # or each attempt's first collection copies all of this process's pages
    print("ready", flush=True)
    # Not until the end of stdin: processes that others forked may keep it open.
    while line := sys.stdin.readline().strip():
        print(json.dumps(answer(json.loads(line))), flush=True)


def redirect(log: Path) -> None:
    """Write what this process prints to a file; it reads nothing."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (target, 1), (target, 2)):
        os.dup2(source, number)


def become(log: Path, perform: Callable[[], None]) -> NoReturn:
    """In a child: do that, with its output in ``log``, and end."""
    status = 1
    try:
        redirect(log)
        perform()
        status = 0
    except SystemExit as end:
        status = int(str(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
