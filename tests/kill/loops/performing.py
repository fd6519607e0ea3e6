"""One attempt of a loop, in its own process."""

import json
import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
from support.fatal import count_calls, die

from .. import capture, record
from ..points import Point
from . import LOOPS, parts
from .parts import when_reached
from .plain import Plain


def perform(order: Any, options: dict[str, Any], begun: Any) -> None:
    """Train as ordered, then write the record.

    Args:
        order: An ``attempt.Order``.
        options: Keyword arguments of ``resilient.Run``, but for the objects.
        begun: Called before training.
    """
    point = Point.parse(order.kill) if order.kill else None
    kill_at = int(order.kill.split("@")[1]) if point and point.event == "call" else None
    calls = count_calls(kill_at)
    trained: list[int] = []

    def reached(step: int) -> None:
        nonlocal point
        trained.append(step)
        if point and point.event == "step" and step >= point.epoch:
            which, point = point.which, None
            die(which)

    when_reached(reached)
    begun()
    directory = Path(order.home, "checkpoints")

    def make(**objects: Any) -> Any:
        if order.mode == "keras":
            return Plain(**objects)
        import resilient

        return resilient.Run(directory, **options, **objects)

    parts.changed = order.change
    compared = LOOPS[order.scenario].train(make)
    run = compared.pop("run")
    found: dict[str, Any] = {name: look(thing) for name, thing in compared.items()}
    found["history"] = {name: list(values) for name, values in run.history.items()}
    found["step"] = run.step
    found["random"] = capture.random_states()
    flat: record.Record = {}
    for name, part in found.items():
        flat.update(record.flatten(part, name))
    about = {"trained": [[0, step] for step in trained], "calls": list(calls)}
    Path(order.home, order.out + ".json").write_text(json.dumps(about))
    record.save(flat, Path(order.home, order.out))


def look(thing: Any) -> Any:
    """Everything in an object that a loop may change."""
    if isinstance(thing, keras.optimizers.Optimizer | keras.layers.Layer):
        return [capture.as_numpy(v.value) for v in thing.variables]
    if isinstance(thing, keras.metrics.Metric):
        return [capture.as_numpy(v.value) for v in thing.variables]
    if isinstance(thing, keras.Variable):
        return capture.as_numpy(thing.value)
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    if isinstance(thing, random.Random):
        return thing.getstate()
    library = type(thing).__module__.partition(".")[0]
    if keras.backend.backend() == "torch":
        import torch

        if isinstance(thing, torch.nn.Module):
            return {n: as_numpy(b) for n, b in thing.named_buffers()} | {
                n: as_numpy(p) for n, p in thing.named_parameters()
            }
        if isinstance(thing, torch.Generator):
            return thing.get_state().numpy()
        if isinstance(thing, torch.Tensor):
            return as_numpy(thing)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(thing, tf.Module):
            return [v.numpy() for v in thing.variables]
        if isinstance(thing, tf.Variable):
            return thing.numpy()
    if library in ("jaxlib", "jax"):
        import jax

        key = str(thing.dtype).startswith("key")
        return np.asarray(jax.random.key_data(thing) if key else thing)
    if hasattr(thing, "state_dict"):
        return look(thing.state_dict())
    if isinstance(thing, dict):
        return {key: look(item) for key, item in thing.items()}
    if isinstance(thing, list | tuple):
        return [look(item) for item in thing]
    return thing


def as_numpy(tensor: Any) -> np.ndarray:
    """With its own dtype, which NumPy may lack."""
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy()
    return tensor.numpy()
