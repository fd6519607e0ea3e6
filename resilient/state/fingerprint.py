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
from resilient.serialization.schema import strict
from resilient.state import replicas
from resilient.state.build import is_built
from resilient.state.topology import ends, topology

logger = logging.getLogger(__name__)

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
    return {
        "identity": {
            "backend": keras_internals.BACKEND,
            **function["identity"],
            "optimizer": class_names(model.optimizer),
            "steps_per_execution": int(model.steps_per_execution),
            "initial_epoch": int(fit_arguments["initial_epoch"]),
            "steps_per_epoch": fit_arguments["steps_per_epoch"],
            **{f"data {name}": value for name, value in data.items()},
        },
        "settings": {
            **_spread(model),
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            **function["settings"],
            **of_training(model),
            **environment(backend),
        },
        "determinism": in_effect(),
    }


def of_layers(model: keras.layers.Layer, config: JSON) -> JSON:
    """Facts about the function that a model or layer with this config computes."""
    alone = not isinstance(model, keras.Model)
    layers = list(model._flatten_layers(include_self=alone))
    return {
        "identity": {
            "model": type(model).__name__,
            "layers": [type(layer).__name__ for layer in layers],
            "dtype policies": [layer.dtype_policy.name for layer in layers],
            **topology(config),
        },
        "settings": {
            "keras": keras.__version__,
            **{
                f"layer {i} ({type(layer).__name__}) {key}": value
                for i, layer in enumerate(layers)
                for key, value in plain_config(layer).items()
            },
        },
        "determinism": {},
    }


def of_training(model: keras.Model) -> JSON:
    """The settings that a compiled model trains with, as JSON."""
    return {
        "loss": _simple(getattr(model, "loss", None)),
        **of_optimizer(model.optimizer),
    }


def of_optimizer(optimizer: keras.optimizers.Optimizer) -> JSON:
    """Its settings except the learning rate, which is a variable or a schedule."""
    return {f"optimizer {key}": x for key, x in plain_config(optimizer).items()}


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
        learning_rate: The script's rate, if it is a plain number.
        architecture: The model's.
    """

    def __init__(
        self,
        model: keras.Model,
        data: JSON,
        fit_arguments: Mapping[str, Any],
        backend: Backend,
    ) -> None:
        self.learning_rate = learning_rate(model.optimizer)
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
            "learning rate": self.learning_rate,
            **{k: v for k, v in either.items() if k.partition(" ")[0] not in mine},
        }


def learning_rate(optimizer: Any) -> float | None:
    """An optimizer's learning rate, if it is a plain number."""
    rate = getattr(optimizer, "_learning_rate", None)
    if not isinstance(rate, keras.Variable):
        return None
    value = keras.ops.convert_to_tensor(rate)
    if keras_internals.BACKEND == "tensorflow":
        value += 0.0  # a plain tensor, even if the variable has replicas
    return float(value)  # JAX would compile a sum


def environment(backend: Backend) -> dict[str, str]:
    """Versions that affect the bytes."""
    return {
        "keras": keras.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **backend.versions(),
    }


def class_names(optimizer: Any) -> list[str]:
    """The class of an optimizer, and of each optimizer that it wraps."""
    names = []
    while optimizer is not None:
        names.append(type(optimizer).__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return names


def plain_config(thing: Any) -> JSON:
    """The plain values in a layer's or optimizer's config, except names."""
    # Seeds differ by process if the script gives none, and are restored. Shapes of
    # input layers depend on how the model was built; weights are compared separately,
    # including those in a torch module that a layer wraps.
    left_out = (
        *("name", "dtype", "learning_rate", "seed", "module"),
        *("batch_shape", "batch_input_shape"),
    )
    config = raw_config(thing)
    config |= ends(config)
    simple = {k: _simple(v) for k, v in config.items() if k not in left_out}
    return {k: v for k, v in simple.items() if v is not None}


def _simple(value: Any) -> Any:
    """``value`` if it is JSON already, otherwise None."""
    if isinstance(value, float):
        return strict(value)
    if isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_simple(v) for v in value]
        return None if any(v is None for v in items) else items
    return None


class Architecture:
    """The architecture of a compiled model as text, known once it is built."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._built = False
        self._text: str | None = None

    def now(self) -> str | None:
        """The text, computed once; None if there is none (yet)."""
        self._look()
        return self._text

    def config(self) -> JSON:
        """What the model's ``get_config()`` returns; empty if there is none."""
        # What the text was made of has the same, and large models need seconds for it.
        whole = self._look()
        return raw_config(self._model) if whole is None else dict(whole["config"])

    def _look(self) -> JSON | None:
        """What Keras makes of the model, the first time that it is built."""
        if self._built or not is_built(self._model):
            return None
        self._built = True
        whole, self._text = _serialised(self._model)
        return whole


def raw_config(thing: Any) -> JSON:
    """``get_config()``, if available."""
    try:
        with warnings.catch_warnings():
            # Keras's own get_config of an optimizer warns under numpy 2.4.
            warnings.simplefilter("ignore")
            return dict(thing.get_config())
    except Exception:
        # No optimizer, or a class without a config: nothing to compare.
        return {}


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
