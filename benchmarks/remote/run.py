"""Saves to an S3 server on loopback: how long training stops, and until each is safe.

    python -m venv v
    v/bin/pip install ".[remote,torch]" lightning s3fs "moto[s3,server]"
    KERAS_BACKEND=torch v/bin/python benchmarks/remote/run.py --megabytes 100

Beside us, in turns: Lightning's ``Trainer.save_checkpoint("s3://...")``, which goes
through fsspec as well; and what the server takes of the same bytes by itself. All three
send the same state, weights and Adam's two moments, from one process.
"""

import argparse
import contextlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import lightning
import numpy as np
import s3fs
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console
from rich.progress import track
from rich.table import Table

import resilient
from resilient.telemetry.events import read_events

BUCKET = "bucket"


class Times(NamedTuple):
    """Seconds: that training stops, until it is on the local disk, until it is far."""

    stall: float | None
    near: float | None
    far: float


@contextlib.contextmanager
def server() -> Iterator[None]:
    """A server in a process of its own, as far away as one machine allows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield
    finally:
        process.kill()
        process.wait()


def make_model(megabytes: float) -> keras.Model:
    """A model of which weights and Adam's moments have this size."""
    width = int((megabytes * 1e6 / 4 / 3 / 4) ** 0.5)
    dense = [keras.layers.Dense(width, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.layers.Input((width,)), *dense])
    model.compile("adam", "mse")
    return model


def ours(model: keras.Model, batch: np.ndarray, near: Path, saves: int) -> list[Times]:
    """``resilient.Run``; each save is waited for, so that each is measured alone."""
    run = resilient.Run(
        f"s3://{BUCKET}/ours-{near.name}",
        local_dir=near,
        model=model,
        keep=1,
        save_freq=10**9,
        verbose=0,
    )
    batches = [(batch, batch)] * (saves + 1)
    for _, step, (x, y) in run.loop(batches, epochs=1):
        while step and len(events(near, "uploaded")) < step:
            time.sleep(0.02)
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
    return times


def events(near: Path, kind: str) -> list[dict]:
    """What has happened so far, from the run's own record."""
    return [each for each in read_events(near) if each["event"] == kind]


def lightnings(tensors: dict[str, torch.Tensor], saves: int) -> list[Times]:
    """``TorchCheckpointIO``, which Lightning's Trainer calls; to the same server."""
    io = TorchCheckpointIO()
    times = []
    for number in range(saves):
        began = time.monotonic()
        io.save_checkpoint({"state_dict": tensors}, f"s3://{BUCKET}/l/{number}.ckpt")
        seconds = time.monotonic() - began
        times.append(Times(seconds, None, seconds))
        io.remove_checkpoint(f"s3://{BUCKET}/l/{number}.ckpt")
    return times


def plain(nbytes: int, saves: int) -> list[Times]:
    """One object of the same size, as s3fs puts it."""
    fs, content = s3fs.S3FileSystem(), os.urandom(nbytes)
    times = []
    for number in range(saves):
        began = time.monotonic()
        fs.pipe_file(f"{BUCKET}/p/{number}", content)
        times.append(Times(None, None, time.monotonic() - began))
        fs.rm_file(f"{BUCKET}/p/{number}")
    return times


def row(times: list[Times], part: str, limit: float) -> str:
    """Median and quartiles in seconds, and the median as a part of what a put takes."""
    samples = [getattr(each, part) for each in times]
    if None in samples:
        return "-"
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f}), {middle / limit:.2f}"


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--saves", type=int, default=5, help="in each turn")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[Times]] = {"resilient": [], "Lightning": [], "s3fs": []}
    with server(), tempfile.TemporaryDirectory() as folder:
        for turn in track(range(asked.turns), console=Console(stderr=True)):
            model = make_model(asked.megabytes)
            width = model.input_shape[-1]
            batch = np.random.default_rng(turn).random((8, width), "float32")
            model.train_on_batch(batch, batch)
            held = [*model.variables, *model.optimizer.variables]
            tensors = {str(i): each.value.detach() for i, each in enumerate(held)}
            nbytes = sum(each.nbytes for each in tensors.values())
            near = Path(folder, str(turn))
            found["resilient"] += ours(model, batch, near, asked.saves)
            found["Lightning"] += lightnings(tensors, asked.saves)
            found["s3fs"] += plain(nbytes, asked.saves)
            shutil.rmtree(near)
    limit = float(np.median([each.far for each in found["s3fs"]]))
    count = asked.turns * asked.saves
    table = Table(title=f"{nbytes / 1e6:.0f} MB, {count} saves each")
    for column in ("", "training stops", "safe near", "safe far"):
        table.add_column(column)
    for name, times in found.items():
        parts = ("stall", "near", "far")
        table.add_row(name, *(row(times, part, limit) for part in parts))
    console = Console()
    console.print(table)
    console.print(
        "Seconds: median (quartiles); after the comma the median as a part of what "
        f"s3fs needs to put the same bytes. {os.cpu_count()} cores, "
        f"{platform.platform()}, Keras {keras.__version__}, "
        f"PyTorch {torch.__version__}, Lightning {lightning.__version__}."
    )


if __name__ == "__main__":
    main()
