"""Take the record of a finished ``fit``: everything that must be equal.

The only place of the tests that reads private state of Keras and TensorFlow: it looks
where the library looks, but on its own, so that nothing forgotten there is forgotten
here too.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
from keras.src.backend.common import global_state

from .record import Record, flatten
from .scenarios.registry import Case


def take(case: Case, history: keras.callbacks.History, files: Path) -> Record:
    """The record of ``case`` after its fit returned ``history``."""
    record: Record = {}
    parts: dict[str, Any] = {
        "variables": dict(variables(case.model)),
        "history": {
            "history": history.history,
            "epoch": history.epoch,
            "params": history.params,
            "is the model's": history is case.model.history,
        },
        "model": {"stop_training": case.model.stop_training},
        "callbacks": [
            (type(callback).__name__, attributes(callback, case.clocks))
            for callback in case.callbacks
        ],
        "random": random_states(),
        "files": dict(contents(files)),
    }
    for name, part in parts.items():
        record.update(flatten(part, name))
    return record


def variables(model: keras.Model) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Every tensor that training can change, by group."""
    groups: dict[str, Iterable[Any]] = {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    for name in sorted(vars(model)):
        item = vars(model)[name]
        if isinstance(item, keras.optimizers.Optimizer):
            groups[f"model.{name}"] = item.variables
        elif isinstance(item, keras.random.SeedGenerator):
            groups[f"model.{name}"] = [item.state]
    for name, group in groups.items():
        values = [part for item in group for part in components(item.value)]
        yield name, [as_numpy(value) for value in values]
    if keras.backend.backend() == "torch":
        import torch

        layers = model._flatten_layers()
        modules = [layer for layer in layers if isinstance(layer, torch.nn.Module)]
        buffers = [buffer for module in modules for buffer in module.buffers()]
        yield "buffers", [as_numpy(buffer) for buffer in buffers]


def components(value: Any) -> Iterable[Any]:
    """What this process has of a variable: its replicas' components, where TensorFlow
    distributes it; its devices' shards, where several JAX processes share it.
    """
    if keras.backend.backend() == "tensorflow":
        return getattr(value, "values", (value,))
    if not getattr(value, "is_fully_addressable", True):
        return [shard.data for shard in value.addressable_shards]
    return (value,)


def as_numpy(tensor: Any) -> np.ndarray:
    """A copy with the tensor's own dtype, bfloat16 included."""
    return np.array(keras.ops.convert_to_numpy(tensor))


def attributes(item: Any, clocks: frozenset[str]) -> dict[str, Any]:
    """A callback's attributes but the model, and those that hold the time of day."""
    state = getattr(item, "state_dict", dict)()
    skip = {"_model", *clocks}
    return {"state_dict": state} | {
        name: value for name, value in vars(item).items() if name not in skip
    }


def random_states() -> dict[str, Any]:
    """The state of every global random number generator."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }
    generator = global_state.get_global_attribute("global_seed_generator")
    if generator is not None:
        states["keras"] = as_numpy(generator.state.value)
    if "torch" in sys.modules:
        import torch

        states["torch"] = torch.get_rng_state().numpy()
    if keras.backend.backend() == "tensorflow":
        from tensorflow.python.eager import context
        from tensorflow.python.ops import stateful_random_ops

        own = context.context()
        states["tensorflow seed"] = own._seed
        states["tensorflow"] = own._rng.getstate() if hasattr(own, "_rng") else None
        if stateful_random_ops.global_generator is not None:
            states["generator"] = stateful_random_ops.global_generator.state.numpy()
    return states


def contents(files: Path) -> Iterator[tuple[str, Any]]:
    """What callbacks wrote: bytes, weights, or the summaries of a TensorBoard."""
    boards = set()
    for file in sorted(files.rglob("*")):
        if file.name.startswith("events.out.tfevents"):
            boards.add(file.parent)
        elif file.is_file():
            read = weights if file.suffix == ".h5" else Path.read_bytes
            yield str(file.relative_to(files)), read(file)
    for board in sorted(boards):
        yield str(board.relative_to(files)), summaries(board)


def weights(file: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item)

    with h5py.File(file) as opened:
        opened.visititems(visit)
    return found


def summaries(board: Path) -> list[tuple[str, int, bytes]]:
    """Tag, step and value of every summary, of all attempts together."""
    import tensorflow as tf

    found = []
    for file in board.iterdir():
        try:
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    content = value.tensor.SerializeToString(deterministic=True)
                    found.append((value.tag, event.step, content))
        except tf.errors.DataLossError:
            continue  # a kill tore the end of this file
    return sorted(found)
