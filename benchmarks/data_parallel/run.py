"""What do averaged gradients cost, beside `DistributedDataParallel`?

    KERAS_BACKEND=torch python benchmarks/data_parallel/run.py [--json FILE]

The same model, batches and number of processes in all ways, each process on one
thread. Ours is Keras's own `train_step` with averaged gradients. Peers: the Keras model
under DDP with Keras's optimizer, which differs from ours in the averaging alone; the
same with torch's optimizer; and the model written in torch, under DDP, with torch's
optimizer. "not averaged" is Keras's `train_step` of each process on its own.

Rounds of all ways follow each other in one run, so that what else the machine does hits
all alike. Ratios are medians of paired ratios: the time of a step of ours over that of
the peer in the same round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from resilient.supervise.environment import HOST, free_ports

_WORKER = Path(__file__).with_name("worker.py")


def measure(world: int, options: dict[str, Any]) -> dict[str, Any]:
    """Times of steps in seconds, by way, as rank 0 saw them."""
    (port,) = free_ports(1)
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WORLD_SIZE": world}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "found.json"
        told = quiet | {"MASTER_ADDR": HOST, "MASTER_PORT": port}
        processes = [
            subprocess.Popen(
                [sys.executable, str(_WORKER), json.dumps(options), str(file)],
                env=os.environ
                | {k: str(v) for k, v in told.items()}
                | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]
        try:
            statuses = [process.wait(timeout=900) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(statuses):
            raise SystemExit(f"a process failed: {statuses}")
        return json.loads(file.read_text(encoding="utf-8"))


def table(found: dict[str, Any]) -> Table:
    """Medians and ratios of one model."""
    made = Table(
        title=f"{found['name']}: {found['megabytes']:.1f} MB of gradients in "
        f"{found['variables']} variables, {found['world']} processes",
        title_justify="left",
    )
    made.add_column("")
    for name in ("ms a step", "ours / it", "quartiles", "of shortest"):
        made.add_column(name, justify="right")
    ours = found["times"]["resilient"]
    for way, times in found["times"].items():
        ratios = [one / other for one, other in zip(ours, times, strict=True)]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        made.add_row(
            way,
            f"{1e3 * statistics.median(times):.2f}",
            f"{middle:.3f}",
            f"{low:.3f}-{high:.3f}",
            f"{min(ours) / min(times):.3f}",
        )
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in each round")
    parser.add_argument("--only", nargs="*", default=["small", "deep", "wide"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console, report = Console(width=100), []
    for name in options.only:
        asked = {"name": name, "rounds": options.rounds, "steps": options.steps}
        report.append(measure(options.world, asked))
        console.print(table(report[-1]))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
