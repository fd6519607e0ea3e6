"""Reads a model's training setup, and quickly checks whether it has changed.

Settings are read from attributes named like constructor arguments. ``get_config`` would
read variables, which have no values while JAX trains, and saves would wait for it.
"""

import operator
import types
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.objects.training_setup import describe

Facts = dict[str, Any]

# Prefix of the names of facts about layers.
OF_LAYERS = "layer"
NOT_TRAINED = f"{OF_LAYERS}s' variables that are not trained"

_DEPTH = 5
_HANGING = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)


class Look:
    """One look at a model.

    Args:
        model: The model.
        before: The previous look. It knows tensors that may have been deleted, and what
            containers and functions held before steps changed it.

    Attributes:
        facts: What was seen, by name.
    """

    def __init__(self, model: keras.Model, before: "Look | None" = None) -> None:
        self.facts: Facts = {}
        # For a quick check that nothing has changed.
        self._attributes: list[tuple[Mapping[str, Any], str, Any]] = []
        self._containers: list[tuple[Any, tuple[Any, ...]]] = []
        self._arrays: list[tuple[Any, Any, Any]] = []
        self._fixed: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        self._before = before
        self._eager = is_eager(model)
        self._told: set[int] = set()
        self._layers = model._flatten_layers()
        self._variables = list(model.variables)
        self._flags = _flags(model, self._layers, self._variables)
        self._arguments = keras_internals.arguments_of_compile(model)
        self._look(model)
        self._before = None

    def is_old(self, model: keras.Model) -> bool:
        """Whether anything that was read has changed."""
        layers = model._flatten_layers()
        return not (
            _are(layers, self._layers)
            and keras_internals.arguments_of_compile(model) is self._arguments
            and _flags(model, layers, self._variables) == self._flags
            and all(read.get(key) is value for read, key, value in self._attributes)
            and all(_are(describe.items(each), x) for each, x in self._containers)
            and all(describe.version(each) == then for each, then, _ in self._arrays)
        )

    def _look(self, model: keras.Model) -> None:
        self.facts |= {
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            "steps_per_execution": int(model.steps_per_execution),
        }
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            self._tell(name, self._arguments.get(name))
        for number, layer in enumerate(self._layers):
            kind = type(layer).__name__
            place = f"{OF_LAYERS} {number - 1} ({kind})" if number else kind
            self._tell_settings(place, layer, 0)
            self.facts[f"{place}.dtype_policy"] = layer.dtype_policy.name
            # Also optimizers other than the one that the model is compiled with.
            for key, value in list(vars(layer).items()):
                told = key.startswith("_") or (key == "loss" and not number)
                if isinstance(value, _HANGING) and not told:
                    name = f"{place}.{key}" if number or key != "optimizer" else key
                    self._watch(vars(layer), key)
                    self._tell(name, value)
        self.facts[f"{OF_LAYERS}s"] = [
            type(layer).__name__ for layer in self._layers[1:]
        ]
        self._tell_variables()

    def _tell_variables(self) -> None:
        frozen = [i for i, each in enumerate(self._variables) if not each.trainable]
        self.facts[NOT_TRAINED] = frozen
        for number, variable in enumerate(self._variables):
            for key in ("regularizer", "constraint"):
                value = getattr(variable, key, None)
                if value is not None and id(value) not in self._told:
                    name = f"{OF_LAYERS}s' variable {number} ({variable.name}).{key}"
                    self._tell(name, value)

    def _watch(self, attributes: Mapping[str, Any], key: str) -> Any:
        value = attributes[key]
        self._attributes.append((attributes, key, value))
        return value

    def _tell_settings(self, name: str, thing: Any, depth: int) -> None:
        self._told.add(id(thing))
        attributes = getattr(thing, "__dict__", {})
        # These fill caches and logs at every call.
        fixed = isinstance(thing, (keras.layers.Layer, keras.metrics.Metric))
        for setting in describe.settings_of(type(thing)):
            key = setting if setting in attributes else f"_{setting}"
            if key in attributes:
                value = self._watch(attributes, key)
                self._tell(f"{name}.{setting}", value, depth + 1, fixed=fixed)

    def _tell(
        self, name: str, value: Any, depth: int = 0, *, fixed: bool = False
    ) -> None:
        """Describe a value; a ``fixed`` container by what it held when first seen."""
        if isinstance(value, (keras.layers.Layer, keras.Variable)):  # read elsewhere
            self.facts[name] = type(value).__name__
        elif describe.is_array(value):
            self._tell_array(name, value)
        else:
            self.facts[name], held = self._content(value, fixed)
            if depth <= _DEPTH:
                for key, item in held.items():
                    self._tell(f"{name}{key}", item, depth + 1, fixed=fixed)
                if hasattr(type(value), "get_config"):
                    self._tell_settings(name, value, depth)

    def _content(self, value: Any, fixed: bool) -> tuple[Any, dict[str, Any]]:
        """The description of a value and of its contents."""
        if isinstance(value, (types.FunctionType, types.MethodType)):
            fixed = not self._eager  # they matter when traced
        elif not isinstance(value, (list, dict)):
            fixed = False
        if fixed and self._before is not None and id(value) in self._before._fixed:
            self._fixed[id(value)] = known = self._before._fixed[id(value)]
            return known[1:]
        is_long = isinstance(value, describe.CONTAINERS) and describe.is_long(value)
        fact, held = describe.described(value), {} if is_long else describe.held(value)
        if fixed:
            self._fixed[id(value)] = value, fact, held
        elif not isinstance(value, tuple) and (items := describe.items(value)):
            self._containers.append((value, items))
        return fact, held

    def _tell_array(self, name: str, array: Any) -> None:
        now = describe.version(array)
        known = self._before._arrays if self._before is not None else ()
        same = (fact for each, then, fact in known if each is array and then == now)
        fact = next(same, None) or describe.described(array)
        self.facts[name] = fact
        self._arrays.append((array, now, fact))


def is_eager(model: keras.Model) -> bool:
    """Whether each step reads attributes anew, with none baked into a trace."""
    compiled = keras_internals.BACKEND != "torch" or model.jit_compile
    return bool(model.run_eagerly) or not compiled


def _flags(
    model: keras.Model, layers: list[keras.layers.Layer], variables: list[Any]
) -> list[Any]:
    """Settings that are not attributes named like arguments."""
    return [
        *(model.run_eagerly, model.jit_compile, model.steps_per_execution),
        *(layer.dtype_policy for layer in layers),
        *(variable.trainable for variable in variables),
        *(getattr(variable, "regularizer", None) for variable in variables),
        *(getattr(variable, "constraint", None) for variable in variables),
    ]


def _are(now: Iterable[Any], then: Iterable[Any]) -> bool:
    """Whether both are the very same objects."""
    now, then = list(now), list(then)
    return len(now) == len(then) and all(map(operator.is_, now, then))
