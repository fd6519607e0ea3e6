"""One process of `run.py`: the ways to train, round by round."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from resilient.distributed.strategies.torch import initialize
from resilient.distributed.strategies.torch_dp.gradients import averaged_gradients
from resilient.distributed.strategies.torch_dp.start import broadcast_variables

# Width of the input, of each hidden layer, and rows of each process's part of a batch.
_MODELS = {
    "small": ([64, 64, 64], 64),
    "deep": ([256] * 40, 64),
    "wide": ([1024, 2048, 2048, 2048], 64),
}
_RATE = 1e-3


def keras_model(widths: list[int]) -> keras.Model:
    """A network of dense layers, compiled."""
    keras.utils.set_random_seed(1)
    first, *hidden = widths
    layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
    model = keras.Sequential([keras.Input((first,)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(_RATE), loss=loss)
    return model


def torch_model(widths: list[int]) -> nn.Module:
    """The same network in torch."""
    torch.manual_seed(1)
    pairs = pairwise(widths)
    layers = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


Step = Callable[[torch.Tensor, torch.Tensor], Any]


def plain_step(widths: list[int]) -> Step:
    """Keras's train step."""
    model = keras_model(widths)
    model.make_train_function()
    model.train()
    return lambda x, y: model.train_function([(x, y)])


def our_step(widths: list[int], stack: ExitStack) -> Step:
    """Keras's train step, with averaged gradients."""
    model = keras_model(widths)
    broadcast_variables(model.variables)
    stack.enter_context(averaged_gradients(model, distributed.group.WORLD))
    model.make_train_function()
    model.train()
    return lambda x, y: model.train_function([(x, y)])


def ddp_keras_step(widths: list[int]) -> Step:
    """What Keras's train step does, with the model under DDP."""
    model = keras_model(widths)
    parallel = DistributedDataParallel(model)
    model.train()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        predicted = parallel(x)
        model.zero_grad()
        loss = model.compute_loss(x, y, predicted)
        model._loss_tracker.update_state(loss, sample_weight=x.shape[0])
        loss.backward()
        weights = model.trainable_weights[:]
        gradients = [v.value.grad for v in weights]
        with torch.no_grad():
            model.optimizer.apply(gradients, weights)
        model.compute_metrics(x, y, predicted)

    return step


def ddp_torch_step(module: nn.Module) -> Step:
    """The usual loop of torch."""
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(module.parameters(), _RATE)
    compute_loss = nn.CrossEntropyLoss()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        compute_loss(parallel(x), y).backward()
        optimizer.step()

    return step


def measure(name: str, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of a step, by way and round."""
    widths, rows = _MODELS[name]
    x = torch.randn(rows, widths[0])
    y = torch.randint(10, (rows,))
    shapes = [v.shape for v in keras_model(widths).trainable_variables]
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ways = {
            "resilient": our_step(widths, stack),
            "Keras model and optimizer, DDP": ddp_keras_step(widths),
            "Keras model, torch optimizer, DDP": ddp_torch_step(keras_model(widths)),
            "torch model and optimizer, DDP": ddp_torch_step(torch_model(widths)),
            "not averaged": plain_step(widths),
        }
        for number in range(-1, rounds):
            for way, step in ways.items():
                distributed.barrier()
                begun = time.perf_counter()
                for _ in range(steps):
                    step(x, y)
                spent = (time.perf_counter() - begun) / steps
                if number >= 0:  # the first round makes ready
                    times.setdefault(way, []).append(spent)
    return {
        "name": name,
        "world": distributed.get_world_size(),
        "variables": len(shapes),
        "megabytes": sum(4 * torch.Size(shape).numel() for shape in shapes) / 1e6,
        "times": times,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    initialize()
    found = measure(**json.loads(sys.argv[1]))
    if distributed.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()
