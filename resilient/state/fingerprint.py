"""Identifies a run, so that a checkpoint of a different run is not resumed by mistake.

Three kinds of facts, which ``comparison`` compares:

* ``identity``: what defines the run (layers, optimizer, data, initial epoch...);
* ``settings``: values of layers, loss and optimizer, and versions;
* ``determinism``: settings that decide whether computation is deterministic.

Epochs, verbose, patience and the like are in none of these and may change freely.
"""

import math
import platform
import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.backends.determinism import in_effect
from resilient.keras_internals import replicas
from resilient.serialization import JSON
from resilient.state.build import is_built
from resilient.state.settings import REFERRED, Settings, optimizers

# Arguments of fit that may change between attempts, but not between processes.
_SHARED = ("epochs", "validation_freq", "validation_steps", "class_weight")


def fingerprint(
    model: keras.Model, data: JSON, fit_arguments: Mapping[str, Any], backend: Backend
) -> JSON:
    """The facts of this run as JSON; arguments as for ``RunFingerprint``."""
    function = of_layers(model)
    rest = {
        "identity": {
            "backend": keras_internals.BACKEND,
            "optimizer": class_names(model.optimizer),
            "steps_per_execution": int(model.steps_per_execution),
            "initial_epoch": int(fit_arguments["initial_epoch"]),
            "steps_per_epoch": fit_arguments["steps_per_epoch"],
            **{f"data {name}": value for name, value in data.items()},
        },
        "settings": {"devices": _devices(model), **environment(backend)},
        "determinism": in_effect(),
    }
    return {part: {**function[part], **rest[part]} for part in rest}


def of_layers(model: keras.layers.Layer) -> JSON:
    """Facts about what a built model or layer computes, and how it trains."""
    settings = Settings(model, whole=True)
    first, connections = int(isinstance(model, keras.Model)), JSON()
    for number, layer in enumerate(settings.layers, -first):
        name = f"layer {number} " if layer is not model else ""
        connections |= _connections(layer, name)
    layers = settings.layers[first:]
    return {
        "identity": {
            "model": type(model).__name__,
            "layers": [type(layer).__name__ for layer in layers],
            **connections,
        },
        "settings": {
            "keras": keras.__version__,
            "python": platform.python_version(),
            **settings.facts,
        },
        "determinism": {},
    }


def _connections(model: Any, name: str) -> JSON:
    """What each operation of a functional model is called on.

    Two models with equal layers may still compute different things: a layer has other
    inputs, or an operation another constant. Keras's automatic names differ from
    process to process, so tensors are known by the place of the operation that makes
    them.
    """
    depths = sorted(getattr(model, "_nodes_by_depth", {}).items(), reverse=True)
    nodes = [node for _, found in depths for node in found]  # those of inputs first
    places = {id(each): n for n, each in enumerate(model.operations if nodes else ())}
    tensors, found = dict[int, str](), dict[str, list[Any]]()

    def described(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            return tensors.get(id(value))
        if keras.ops.is_tensor(value):
            value = keras.ops.convert_to_numpy(value)
        if isinstance(value, (np.ndarray, np.generic)):
            plain = not value.dtype.hasobject  # of objects, the bytes are addresses
            raw = value.tobytes() if plain else repr(value.tolist()).encode()
            return f"{value.shape} {value.dtype} {zlib.crc32(raw):08x}"
        # Other values may contain addresses or automatic names.
        return repr(value) if isinstance(value, (bool, int, float)) else None

    def all_of(value: Any) -> list[Any]:
        leaves = keras.tree.flatten_with_path(value)
        return [[".".join(map(str, path)), described(each)] for path, each in leaves]

    for node in nodes:
        place, kind = places[id(node.operation)], type(node.operation).__name__
        calls = found.setdefault(f"connections of {name}operation {place} ({kind})", [])
        for index, tensor in enumerate(node.outputs):
            tensors[id(tensor)] = f"{place}.{len(calls)}.{index}"
        calls.append(all_of([node.arguments.args, node.arguments.kwargs]))
    if nodes:
        found[f"connections of {name}outputs"] = all_of([model.input, model.output])
    return found


def _devices(model: keras.Model) -> str:
    """The replicas or devices, which determine the order of sums."""
    distribution = keras.distribution.distribution()
    number = replicas.count(model)
    found = f"{number} replicas" if number > 1 else "one device"
    if distribution is not None:
        shape = [int(n) for n in distribution.device_mesh.shape]
        found = f"a mesh of {' x '.join(map(str, shape))} devices"
        number = math.prod(shape)
    if number > 2:  # two have only one order
        several = replicas.are_in_several_processes(model)
        found += f" in {'several processes' if several else 'one process'}"
    return found


class RunFingerprint:
    """This run's fingerprint, complete once the model is built.

    Args:
        model: The compiled model, which may not be built yet.
        data: Fingerprint of the training data.
        fit_arguments: Local variables of Keras's ``fit``.
        backend: Of the model.

    Attributes:
        rates: The script's learning rates that are plain numbers, by name.
    """

    def __init__(
        self,
        model: keras.Model,
        data: JSON,
        fit_arguments: Mapping[str, Any],
        backend: Backend,
    ) -> None:
        found = learning_rates(model.optimizer)
        self.rates = {name: number for name, (_, number) in found.items()}
        self._model = model
        self._rest = data, fit_arguments, backend
        self._complete: JSON | None = None

    def current(self) -> JSON:
        """The fingerprint, which callbacks' changes to a built model do not affect."""
        if self._complete is not None:
            return self._complete
        found = fingerprint(self._model, *self._rest)
        if is_built(self._model):
            self._complete = found
        return found

    def of_all_processes(self) -> JSON:
        """What must be equal in all processes: everything except data and versions."""
        found, (_, arguments, backend) = self.current(), self._rest
        either = found["identity"] | found["settings"]
        mine = {"data", *environment(backend)}
        validated = arguments["validation_data"] is not None
        return {
            **{name: arguments[name] for name in _SHARED},
            "validation_data": "given" if validated else "none",
            **self.rates,
            **{
                name: fact
                for name, fact in either.items()
                if name.partition(" ")[0] not in mine and not REFERRED.fullmatch(name)
            },
        }


def learning_rates(optimizer: Any) -> dict[str, tuple[keras.Variable, float]]:
    """The learning rates that are plain numbers: their variables and values, by name.

    Args:
        optimizer: One that may hold others, each with its own rate.
    """
    every, found = dict(optimizers(optimizer)), {}
    for name, each in every.items():
        rate = getattr(each, "_learning_rate", None)
        if not isinstance(rate, keras.Variable):
            continue
        value = keras.ops.convert_to_tensor(rate)
        if keras_internals.BACKEND == "tensorflow":
            value += 0.0  # a plain tensor, even if the variable has replicas
        number = float(value)  # JAX would compile a sum
        if number or each is optimizer is list(every.values())[-1]:
            inner = name.removeprefix("optimizer").removeprefix(".")
            found["learning rate" + f" of {inner}" * bool(inner)] = rate, number
    return found


def environment(backend: Backend) -> dict[str, str]:
    """Versions that affect the bytes."""
    return {
        "keras": keras.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **backend.versions(),
    }


def class_names(optimizer: Any) -> list[str]:
    """The class of an optimizer, and of each optimizer that it holds."""
    return [type(each).__name__ for _, each in optimizers(optimizer)]
