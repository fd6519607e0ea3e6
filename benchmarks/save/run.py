"""What does a save cost, and a restore, beside the machine's limits and the peers?

    KERAS_BACKEND=jax python benchmarks/save/run.py [--sizes 10 100 400] [--write]

Three kinds of tables. Components, at each size of state: how long a save keeps training
waiting, over a copy of the same bytes; the whole save until it is on disk, over writing
and flushing them; the restore, over reading them; the memory that a save needs, over
the state's. Fits: the time of an epoch over that of `model.fit`, with and without
saves. Added time: what one save adds to training, steps after it included.

Peers that are not installed are left out, and it says so. These bring all of them:

    pip install safetensors lightning orbax-checkpoint

Each part runs in a new process; fits with one compute thread, so that a core is free to
write. Ratios are medians of paired ratios, each of two samples next to each other.
"""

import argparse
import importlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import table
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import machine
import pages

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # torch
    "TF_NUM_INTRAOP_THREADS": "1",
    "PJRT_NPROC": "1",  # JAX: the threads of XLA's own pool
}


def in_new_process(
    module: str, environment: Mapping[str, str], **arguments: Any
) -> dict[str, Any]:
    """Call `measure` of a module; libraries read the environment when they start."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_measure, module, arguments).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _measure(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    measure = importlib.import_module(module).measure
    warnings.simplefilter("ignore")
    # Orbax tells all that it does; saves that we leave out are in the tables.
    for name in ("absl", "resilient"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return measure(**arguments)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=float, nargs="*", default=[10, 100, 400], help="MB of state"
    )
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--only", choices=("components", "fits"))
    parser.add_argument("--largest-fit", type=float, default=100, help="MB of state")
    parser.add_argument("--directory", default=tempfile.gettempdir())
    figures.add_options(parser)
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write needs all figures: leave out --only")
    common = {"repeats": options.repeats, "directory": options.directory}
    facts = machine.facts(options.directory)
    report: dict[str, Any] = {"machine": facts, "repeats": options.repeats}
    console = Console(width=120)
    console.print(machine.words(facts))
    if options.only != "fits":
        report["components"] = []
        for size in options.sizes:
            found = in_new_process("components", _QUIET, megabytes=size, **common)
            report["components"].append(found)
            console.print(table.of_components(found))
    if options.only != "components":
        sizes = [size for size in options.sizes if size <= options.largest_fit]
        found = in_new_process("fits", _QUIET | _ONE_THREAD, sizes=sizes, **common)
        report["backend"], report["fits"] = found["backend"], found
        for each in found["epochs"]:
            console.print(table.of_epochs(each, found["backend"]))
        for each in found["added"]:
            console.print(table.of_added(each, found["backend"]))
        for line in found["left_out"]:
            console.print(f"left out: {line}")
    figures.finish(options, pages.NAME, report, pages.write)


if __name__ == "__main__":
    main()
