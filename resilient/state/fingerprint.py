"""Identifies a run, so that a checkpoint of a different run is not resumed by mistake.

Three kinds of facts, which ``comparison`` compares:

* ``identity``: what defines the run (layers, optimizer, data, initial epoch...);
* ``settings``: values of layers, loss and optimizer, and versions;
* ``determinism``: settings that decide whether computation is deterministic.

Epochs, verbose, patience and the like are in none of these and may change freely.

The model's architecture, as serialised by Keras, is kept for people: no model is
created from it, since Keras would import the modules and instantiate the classes that a
checkpoint names.
"""

import json
import logging
import math
import platform
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.backends.determinism import in_effect
from resilient.serialization import JSON
from resilient.state import replicas
from resilient.state.build import is_built
from resilient.state.settings import Settings, is_referred, optimizers, raw_config
from resilient.state.topology import topology

logger = logging.getLogger(__name__)

_UNKNOWN = {
    "connections": "how the layers are connected (the model has no config, since "
    "something in it has no get_config)"
}
# Most characters of an architecture. (An initializer's argument may be a matrix.)
_LONGEST = 1 << 22
# Arguments of fit that may change between attempts, but not between processes.
_SHARED = ("epochs", "validation_freq", "validation_steps", "class_weight")


def fingerprint(
    model: keras.Model,
    data: JSON,
    fit_arguments: Mapping[str, Any],
    backend: Backend,
    config: JSON,
) -> JSON:
    """The facts of this run as JSON; arguments as for ``RunFingerprint``."""
    function = of_layers(model, config)
    rest = {
        "identity": {
            "backend": keras_internals.BACKEND,
            "optimizer": class_names(model.optimizer),
            "steps_per_execution": int(model.steps_per_execution),
            "initial_epoch": int(fit_arguments["initial_epoch"]),
            "steps_per_epoch": fit_arguments["steps_per_epoch"],
            **{f"data {name}": value for name, value in data.items()},
        },
        "settings": {**_spread(model), **environment(backend)},
        "determinism": in_effect(),
    }
    return {part: {**function[part], **rest[part]} for part in rest}


def _is_functional(model: keras.layers.Layer) -> bool:
    return hasattr(model, "operations") and not isinstance(model, keras.Sequential)


def of_layers(model: keras.layers.Layer, config: JSON) -> JSON:
    """Facts about what a model or layer with this config computes, and how it trains.

    Args:
        model: The model or layer, built.
        config: What its ``get_config()`` returns.
    """
    settings = Settings(model, whole=True)
    layers = settings.layers[isinstance(model, keras.Model) :]
    return {
        "identity": {
            "model": type(model).__name__,
            "layers": [type(layer).__name__ for layer in layers],
            **topology(config),
            **({} if "layers" in config or not _is_functional(model) else _UNKNOWN),
        },
        "settings": {
            "keras": keras.__version__,
            "python": platform.python_version(),
            **settings.facts,
        },
        "determinism": {},
    }


def _spread(model: keras.Model) -> JSON:
    """The replicas or devices, which determine the order of sums."""
    distribution = keras.distribution.distribution()
    number, found = replicas.count(model), JSON()
    if distribution is not None:
        shape = [int(n) for n in distribution.device_mesh.shape]
        number, found = math.prod(shape), {"device mesh": shape}
    elif number > 1:
        found = {"replicas": number}
    if number > 2:  # two have only one order
        found["sums between processes"] = replicas.are_in_several_processes(model)
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
        architecture: The model's.
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
        self.architecture = Architecture(model)
        self._model = model
        self._rest = data, fit_arguments, backend
        self._complete: JSON | None = None

    def current(self) -> JSON:
        """The fingerprint, which callbacks' changes to a built model do not affect."""
        if self._complete is not None:
            return self._complete
        config = self.architecture.config()
        found = fingerprint(self._model, *self._rest, config)
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
                if name.partition(" ")[0] not in mine and not is_referred(name)
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


class Architecture:
    """The architecture of a compiled model as text, known once it is built."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._built = False
        self._text: str | None = None

    def now(self) -> str | None:
        """The text, computed once; None if there is none (yet)."""
        self._serialize()
        return self._text

    def config(self) -> JSON:
        """What the model's ``get_config()`` returns; empty if there is none."""
        # What the text was made of has the same, and large models need seconds for it.
        whole = self._serialize()
        return raw_config(self._model) if whole is None else dict(whole["config"])

    def _serialize(self) -> JSON | None:
        """What Keras makes of the model, the first time that it is built."""
        if self._built or not is_built(self._model):
            return None
        self._built = True
        whole, self._text = _serialised(self._model)
        return whole


def _serialised(model: keras.Model) -> tuple[JSON | None, str | None]:
    """As an object, and as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            whole = keras.saving.serialize_keras_object(model)
            text = json.dumps(whole)
    except Exception:  # a custom get_config may raise anything
        logger.debug("the model has no config", exc_info=True)
        return None, None
    if len(text) > _LONGEST:
        logger.debug("the model's config is too long to keep")
        return whole, None
    return whole, text
