"""A PyTorch training loop with a scheduler that survives being killed.

    python examples/torch_loop.py
    python examples/torch_loop.py --checkpoint-dir runs/b --kill-at 40

The second command kills itself (SIGKILL) after step 40. Run it again: it continues with
the batch after the last checkpoint, and prints the same digest as the first one.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import resilient
from resilient import best, every, latest

SPLIT = (range(1500), range(1500, 1797))  # training, held out


def make_net() -> nn.Module:
    """A small CNN."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(16 * 6 * 6, 10),
    )


def shifted(images: torch.Tensor) -> torch.Tensor:
    """The images, shifted at random by up to a pixel."""
    rows, columns = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(images, (rows, columns), (2, 3))


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    directory = Path("runs/torch-loop")
    parser.add_argument("--checkpoint-dir", type=Path, default=directory)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-at", type=int, metavar="STEP")
    arguments = parser.parse_args()

    resilient.deterministic(seed=7)
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))
    train, held_out = (torch.utils.data.Subset(data, r) for r in SPLIT)
    loader = DataLoader(train, batch_size=50, shuffle=True)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.02, epochs=arguments.epochs, steps_per_epoch=len(loader)
    )

    run = resilient.Run(
        arguments.checkpoint_dir,
        save_freq=every(steps=10) | every(epochs=1),
        keep=latest(2) | best(1, monitor="accuracy"),
        net=net,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    for epoch in run.epochs(arguments.epochs):
        net.train()
        for step, (x, y) in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(shifted(x)), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
            if step == arguments.kill_at:
                kill_once(arguments.checkpoint_dir)
        net.eval()
        with torch.no_grad():
            x, y = held_out[:]
            accuracy = (net(x).argmax(1) == y).float().mean()
        run.log(accuracy=accuracy)
        print(f"epoch {epoch}: accuracy {accuracy:.4f}")

    found = hashlib.sha256(json.dumps([run.history["loss"]]).encode())
    for tensor in net.state_dict().values():
        found.update(tensor.numpy().tobytes())
    print("digest", found.hexdigest())


def kill_once(directory: Path) -> None:
    """Die as if the machine were taken away, once per run."""
    happened = directory / "killed"
    if not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
