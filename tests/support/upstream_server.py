"""Runs programs of ``upstream/``, each in a fork of a process that has imported Keras.

``python upstream_server.py MODULE...`` imports the modules, then Keras. Paths come in
on stdin; for each a line of JSON goes out: its exit status, and what it printed.
Forking saves each program the seconds of importing, and keeps it from the others.
"""

import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from typing import IO

LIMIT = 60  # seconds

for _name in sys.argv[1:]:  # torch must come before TensorFlow, or the process crashes
    import_module(_name)

# isort: split
import keras  # noqa: E402, F401


def serve() -> None:
    """Until the end of stdin."""
    sys.modules["resilient"] = None  # type: ignore[assignment]  # no fault is ours
    warnings.simplefilter("ignore")  # JAX warns of forks; no thread runs here yet
    gc.freeze()
    for path in sys.stdin:
        with tempfile.TemporaryFile("w+") as printed:
            pid = os.fork()
            if not pid:
                _become(path.strip(), printed)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it started
            printed.seek(0)
            print(json.dumps([status, printed.read()]), flush=True)


def _become(path: str, printed: IO[str]) -> None:
    """In the child: be that program, and never return."""
    status = 0
    try:
        os.setsid()
        signal.alarm(LIMIT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = 1
        print(end.code)
    except BaseException:
        status = 2
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
