"""Loops of PyTorch alone."""

import random
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from .parts import BATCH, CLASSES, FEATURES, SAMPLES, arrays, reached
from .registry import Make, loop


class Net(torch.nn.Module):
    """With statistics, dropout, a buffer that no state_dict has, and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.4),
            torch.nn.Linear(8, CLASSES),
        )
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += len(x)
        return self.layers(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def data() -> DataLoader:
    x, y = arrays()
    return DataLoader(
        TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        batch_size=BATCH,
        shuffle=True,
    )


@loop("step@3", "step@8", "step@10", "step@17", plain=True, in_exact=True)
def scheduler_and_scaler(make: Make) -> dict[str, Any]:
    """Reference: the plain loop."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
    average = torch.optim.swa_utils.AveragedModel(net)
    run = make(
        net=net,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        average=average,
    )
    for _, step, (x, y) in run.loop(data(), epochs=4):
        optimizer.zero_grad()
        noise = torch.randn(x.shape) * random.random()
        loss = torch.nn.functional.cross_entropy(net(x + noise), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(net)
        run.log(loss=loss, rate=scheduler.get_last_lr()[0])
        reached(step)
    return {
        "net": net,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "average": average,
        "calls": net.calls,
        "run": run,
    }


@loop("step@4", "step@9", "step@16", save_freq=1, plain=True)
def accumulated_gradients(make: Make) -> dict[str, Any]:
    """Of three batches, dropped after them; and a layer that is thawed meanwhile."""
    net = Net()
    net.layers[0].requires_grad_(False)
    embedding = torch.nn.Embedding(SAMPLES, CLASSES, sparse=True)
    optimizer = torch.optim.SGD([*net.parameters(), *embedding.parameters()], lr=0.1)
    run = make(net=net, embedding=embedding, optimizer=optimizer)
    for _, step, (x, y) in run.loop(data(), epochs=3):
        loss = torch.nn.functional.cross_entropy(net(x) + embedding(y), y)
        loss.backward()
        if step == 7:
            net.layers[0].requires_grad_(True)
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        run.log(loss=loss)
        reached(step)
    return {"net": net, "embedding": embedding, "optimizer": optimizer, "run": run}


@loop("step@4", "step@9", plain=True)
def two_optimizers_and_low_precision(make: Make) -> dict[str, Any]:
    """Slots of another type than their parameter, a free parameter, a generator."""
    half = torch.nn.Linear(FEATURES, CLASSES).to(torch.bfloat16)
    bias = torch.nn.Parameter(torch.zeros(CLASSES))
    first = torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam([bias], lr=0.01, amsgrad=True)
    generator = torch.Generator().manual_seed(4)
    objects = {"half": half, "bias": bias, "first": first, "second": second}
    run = make(**objects, generator=generator)
    for epoch, step, (x, y) in run.loop(data(), epochs=3):
        first.zero_grad()
        second.zero_grad()
        noise = torch.randn(x.shape, generator=generator)
        scores = half((x + noise).to(torch.bfloat16)).float() + bias
        loss = torch.nn.functional.cross_entropy(scores, y)
        loss.backward()
        first.step()
        for slots in first.state.values():  # as master weights are kept
            slots["momentum_buffer"] = slots["momentum_buffer"].float()
        if epoch:
            second.step()
        for slots in first.state.values():
            slots["wide"] = slots["momentum_buffer"] + 1e-6
            slots["momentum_buffer"] = slots["momentum_buffer"].bfloat16()
        run.log(loss=loss)
        reached(step)
    return {**objects, "generator": generator, "run": run}


@loop("step@5", "step@9", "step@14", save_freq=1, plain=True)
def endless_over_a_loader(make: Make) -> dict[str, Any]:
    """A generator whose shuffle draws from the generator that dropout draws from."""

    def cycle(source: DataLoader) -> Any:
        while True:
            for x, y in source:
                yield [x, {"labels": y}]

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = make(net=net, optimizer=optimizer)
    for _, step, (x, named) in run.loop(cycle(data()), epochs=3, steps_per_epoch=6):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), named["labels"])
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        reached(step)
    return {"net": net, "optimizer": optimizer, "run": run}
