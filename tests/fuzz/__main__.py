"""Mutate and read until the time is over. In ``tests/``, with one backend:

    KERAS_BACKEND=torch python -m fuzz --minutes 10

Cases run in a process of their own, since a fault may end that. What is found lies in
``fuzz/findings/``, with what it said beside it; CONTRIBUTING.md says what to do then.
"""

import argparse
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.compiling import compile_once

from .findings import Findings

FOUND = Path(__file__).parent / "findings"
GUIDED = 0.2  # of the time, where there is Atheris
_SLICE = 120.0  # seconds of one process: what libraries leak does not add up
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--only", default="", help="targets with this in their names")
    arguments = parser.parse_args()
    backend = os.environ["KERAS_BACKEND"]
    found, seed = Findings(FOUND / backend), arguments.seed
    print(f"{backend}: seed {seed}, findings go to {found.directory}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as cache:
        compiled = compile_once(Path(cache))
        if importlib.util.find_spec("atheris") and not arguments.only:
            seconds = GUIDED * 60 * arguments.minutes
            _run("guided", seconds, seed, found, compiled)
        while (left := end - time.monotonic()) > 1:
            seed += 1
            seconds = min(left, _SLICE)
            _run("mutated", seconds, seed, found, compiled, arguments.only)
    names = found.names()
    print(f"{backend}: {len(names)} kinds of findings", *names, sep="\n  ")
    return 1 if names else 0


def _run(
    module: str,
    seconds: float,
    seed: int,
    found: Findings,
    compiled: dict[str, str],
    only: str = "",
) -> None:
    """Run cases in another process; say what it said last."""
    command = [sys.executable, "-m", f"fuzz.{module}", str(round(seconds)), str(seed)]
    command += [str(found.directory), *([only] if only else [])]
    with tempfile.TemporaryDirectory(dir=_memory()) as beside:
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": beside, **compiled}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment
        )
    if done.returncode:
        found.ended(f"{module} ended with {done.returncode}\n{done.stderr[-10_000:]}")
    found.done()
    said = done.stdout.splitlines() or [
        line for line in done.stderr.splitlines() if "number_of_executed_units" in line
    ]
    print(f"{module}, {done.returncode}: {said[-1] if said else ''}", flush=True)


def _memory() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
