"""Plot the loss of a run that changed backends twice, beside runs that did not.

python plot.py IMAGE

Where all three backends and matplotlib are installed. The run is killed on PyTorch,
goes on on JAX, is killed there, and ends on TensorFlow: each time from the end of the
last epoch.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

NEVER = 10**9
CHANGES = (("torch", 80), ("jax", 150), ("tensorflow", NEVER))
EPOCH = 57  # batches
SMOOTH = 15  # batches, of the running mean that is drawn


def train(directory: Path, backend: str, until: int) -> None:
    """One attempt."""
    program = Path(__file__).with_name("digits.py")
    subprocess.run(
        [sys.executable, str(program), str(directory), str(until)],
        env=os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""},
        check=until == NEVER,
    )


def losses(directory: Path) -> np.ndarray:
    """The loss of each batch; of what was trained again after a kill, the last."""
    found = np.loadtxt(directory / "losses.csv", delimiter=",")
    last = {int(step): loss for step, loss in found}
    return np.array([last[step] for step in sorted(last)])


def main(image: str) -> None:
    """Train all four, and draw them."""
    mean = np.ones(SMOOTH) / SMOOTH
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    with tempfile.TemporaryDirectory() as home:
        for backend, _ in CHANGES:
            directory = Path(home, backend)
            directory.mkdir()
            train(directory, backend, NEVER)
            smooth = np.convolve(losses(directory), mean, "valid")
            axes.plot(smooth, linewidth=1, label=f"{backend} only")
        directory = Path(home, "changing")
        directory.mkdir()
        for backend, until in CHANGES:
            train(directory, backend, until)
        smooth = np.convolve(losses(directory), mean, "valid")
        axes.plot(smooth, "k", linewidth=1.5, label="torch, jax, tensorflow")
    for _, step in CHANGES[:-1]:
        axes.axvline(
            step // EPOCH * EPOCH - SMOOTH, color="grey", linestyle=":", linewidth=1
        )
    axes.set(xlabel="batch", ylabel=f"loss, mean of {SMOOTH} batches", yscale="log")
    axes.legend()
    figure.savefig(image, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
