"""Detects changes to a model's training setup in the middle of training.

The setup is the optimizer, the loss and the metrics; the layers, which of their weights
are trainable, and their settings (a dropout rate). A callback may replace any of these
in mid-training, while a resumed process begins with what the script creates. That
cannot be restored: a traced step keeps what it was traced with, which nobody can look
up. So a save warns about it, and a resume is refused.

What a callback does before the first batch of every attempt is not such a change: it
only has to happen before the checkpoint is restored. What is inside the objects (items,
arrays, closures) is a matter of the tree of objects.

Settings are read from attributes named like constructor arguments. ``get_config`` would
read variables, which have no values while JAX trains, and saves would wait for it.
"""

import contextlib
import inspect
import operator
import types
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.serialization import JSON, classes
from resilient.serialization.schema import strict
from resilient.state import difference
from resilient.state.build import is_built

_Facts = dict[str, Any]

# Prefix of the names of facts about layers.
_OF_LAYERS = "layer"
_NOT_TRAINED = f"{_OF_LAYERS}s' variables that are not trained"

_DEPTH = 5
_HANGING = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)

# Prefixes of facts that building determines, besides those of layers.
_METRICS = ("metrics[", "weighted_metrics[")
# Arguments of `compile` that may be containers.
_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics")
# Arguments that do not affect what is computed, are held by variables, or are compared
# elsewhere.
_LEFT_OUT = frozenset(
    {
        *("self", "args", "kwargs", "name", "dtype", "seed", "seed_generator", "build"),
        *("layers", "inputs", "outputs", "input_shape", "batch_shape"),
    }
)
_LIBRARIES = ("jax", "jaxlib", "tensorflow", "torch")
_SETTINGS: "weakref.WeakKeyDictionary[type, tuple[str, ...]]" = (
    weakref.WeakKeyDictionary()
)


class TrainingSetup:
    """The setup of one model: as made by the script, at the first batch, and now.

    Args:
        model: The compiled model, before any callback is called.

    Attributes:
        settled: Whether the model and its metrics are built, and were read since.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen = _Reading(model)
        self._script = self._seen.facts
        self._began: _Facts | None = None
        self._built, self.settled = is_built(model), False

    def built(self) -> None:
        """Read anew: the model and its metrics may have been built."""
        if self.settled:
            return
        late = _METRICS if self._built else (*_METRICS, _OF_LAYERS)
        self._seen = _Reading(self._model)
        self.settled = self._built or is_built(self._model)
        self._script = self._settle(self._script, late)
        if self._began is not None:
            self._began = self._settle(self._began, late)

    def begin(self) -> None:
        """The first batch is about to be trained and the step traced."""
        if self._began is None:
            self._began = self.now()

    def now(self) -> _Facts:
        """The setup, by name."""
        if self._seen.is_old(self._model):
            self._seen = _Reading(self._model)
        return self._seen.facts

    def to_json(self, but: Collection[str] = ()) -> JSON:
        """The differences from the script's setup, for a checkpoint; empty if none.

        Args:
            but: Names of facts that are restored.

        Returns:
            ``script``: differences from what the script made; ``now`` and ``then``:
            differences from the first batch.
        """
        now = self.now()
        if now is self._began is self._script:  # asked at each save
            return {}
        changed = _changed(self._began or now, now, but)
        script = _changed(self._script, now, but)
        if not (changed or script):
            return {}
        return {
            "script": {name: now.get(name) for name in script},
            "now": {name: now.get(name) for name in changed},
            "then": {name: (self._began or {}).get(name) for name in changed},
        }

    def differences(self, saved: JSON, but: Collection[str] = ()) -> list[str]:
        """Why a checkpoint cannot be restored into the model in its current state.

        Args:
            saved: What ``to_json`` returned.
            but: Names of facts that are restored.
        """
        now = self.now()
        theirs = self._script | saved.get("script", {})
        names = _changed(theirs, now, but)
        return difference.differences(
            {name: theirs.get(name) for name in names},
            {name: now.get(name) for name in names},
        )

    def _settle(self, facts: _Facts, late: tuple[str, ...]) -> _Facts:
        """``facts``, except that those beginning with ``late`` are current."""
        now = self.now()
        settled = {
            **{k: v for k, v in facts.items() if not k.startswith(late)},
            **{k: v for k, v in now.items() if k.startswith(late)},
        }
        return now if settled == now else settled


def is_eager(model: keras.Model) -> bool:
    """Whether each step reads attributes anew, with none baked into a trace."""
    compiled = keras_internals.BACKEND != "torch" or model.jit_compile
    return bool(model.run_eagerly) or not compiled


def changes(saved: JSON, but: Collection[str] = ()) -> list[str]:
    """Changes in mid-training, one line each, which no resume can reproduce.

    Args:
        saved: What ``TrainingSetup.to_json`` returned.
        but: Names of facts to leave out.
    """
    now, then = (
        {name: value for name, value in saved.get(key, {}).items() if name not in but}
        for key in ("now", "then")
    )
    names = _changed(then, now)
    if any(name.endswith(".trainable") for name in names):  # consequences of that
        names = [name for name in names if name != _NOT_TRAINED]
    return [
        f"{name}: {difference.short(then.get(name))} when training began, "
        f"{difference.short(now.get(name))} at the checkpoint"
        for name in names
    ]


def _changed(before: _Facts, now: _Facts, but: Collection[str] = ()) -> list[str]:
    if before == now:
        return []
    names = (*before, *(name for name in now if name not in before))
    return [
        name
        for name in names
        if name not in but and repr(before.get(name)) != repr(now.get(name))
    ]


class _Reading:
    """What was read of a model, and a quick check whether it has changed.

    Attributes:
        facts: The setup, by name.
    """

    def __init__(self, model: keras.Model) -> None:
        self.facts: _Facts = {}
        # For a quick check that nothing has changed.
        self._attributes: list[tuple[Mapping[str, Any], str, Any]] = []
        self._containers: list[tuple[Any, list[Any]]] = []
        self._noted: set[int] = set()
        self._layers = model._flatten_layers()
        self._variables = list(model.variables)
        self._flags = _flags(model, self._layers, self._variables)
        self._arguments = keras_internals.arguments_of_compile(model)
        self._read(model)

    def is_old(self, model: keras.Model) -> bool:
        """Whether anything that was read has changed."""
        layers = model._flatten_layers()
        return not (
            _are(layers, self._layers)
            and keras_internals.arguments_of_compile(model) is self._arguments
            and _flags(model, layers, self._variables) == self._flags
            and all(read.get(key) is value for read, key, value in self._attributes)
            and all(_are(items_of(each).values(), x) for each, x in self._containers)
        )

    def _read(self, model: keras.Model) -> None:
        self.facts |= {
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            "steps_per_execution": int(model.steps_per_execution),
        }
        for name in _COMPILED:
            self._note_argument(name, self._arguments.get(name))
        for number, layer in enumerate(self._layers):
            kind = type(layer).__name__
            place = f"{_OF_LAYERS} {number - 1} ({kind})" if number else kind
            self._note_settings(place, layer, 0)
            self.facts[f"{place}.dtype_policy"] = layer.dtype_policy.name
            # Also optimizers other than the one that the model is compiled with.
            for key, value in list(vars(layer).items()):
                known = key.startswith("_") or (key == "loss" and not number)
                if isinstance(value, _HANGING) and not known:
                    name = f"{place}.{key}" if number or key != "optimizer" else key
                    self._watch(vars(layer), key)
                    self._note(name, value)
        self.facts[f"{_OF_LAYERS}s"] = [
            type(layer).__name__ for layer in self._layers[1:]
        ]
        self._note_variables()

    def _note_variables(self) -> None:
        frozen = [i for i, each in enumerate(self._variables) if not each.trainable]
        self.facts[_NOT_TRAINED] = frozen
        for number, variable in enumerate(self._variables):
            for key in ("regularizer", "constraint"):
                value = getattr(variable, key, None)
                if value is not None and id(value) not in self._noted:
                    name = f"{_OF_LAYERS}s' variable {number} ({variable.name}).{key}"
                    self._note(name, value)

    def _note_argument(self, name: str, value: Any, depth: int = 0) -> None:
        """An argument of ``compile``, and the losses and metrics in it."""
        inner = items_of(value)
        if not inner or depth > _DEPTH:
            self._note(name, value, depth)
            return
        self.facts[name] = f"{type(value).__name__} of {len(value)}"
        self._containers.append((value, [*inner.values()]))
        for suffix, item in inner.items():
            self._note_argument(f"{name}{suffix}", item, depth + 1)

    def _watch(self, attributes: Mapping[str, Any], key: str) -> Any:
        value = attributes[key]
        self._attributes.append((attributes, key, value))
        return value

    def _note_settings(self, name: str, thing: Any, depth: int) -> None:
        self._noted.add(id(thing))
        attributes = getattr(thing, "__dict__", {})
        for setting in settings_of(type(thing)):
            key = setting if setting in attributes else f"_{setting}"
            if key in attributes:
                value = self._watch(attributes, key)
                self._note(f"{name}.{setting}", value, depth + 1)

    def _note(self, name: str, value: Any, depth: int = 0) -> None:
        self.facts[name] = _described(value)
        read_elsewhere = isinstance(value, (keras.layers.Layer, keras.Variable))
        inside = hasattr(type(value), "get_config") and not read_elsewhere
        if inside and depth <= _DEPTH:
            self._note_settings(name, value, depth)


def items_of(value: Any) -> dict[str, Any]:
    """The items of a list, tuple or dict, by the suffix of the name."""
    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{index}]": item for index, item in enumerate(value)}
    return {}


def settings_of(cls: type) -> tuple[str, ...]:
    """Names of the constructor arguments of a class."""
    known = _SETTINGS.get(cls)
    if known is not None:
        return known
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            names.update(dict.fromkeys(inspect.signature(init).parameters))
    # The arguments of the function that a loss or a metric wraps are a setting, too.
    found = tuple(
        name
        for name in (*names, "fn_kwargs")
        if name not in _LEFT_OUT and not name.endswith("_initializer")
    )
    _SETTINGS[cls] = found
    return found


def _described(value: Any) -> Any:
    """A value as JSON: numbers, texts and tuples of them; anything else by its name."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return strict(float(value))
    if isinstance(value, (int, str)):  # as JSON returns it, also for an enumeration
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, tuple):
        return [_described(item) for item in value]
    if isinstance(value, np.ndarray) or classes.top_module(type(value)) in _LIBRARIES:
        return "array"  # or a tensor of a trace
    name = type(value).__name__
    with contextlib.suppress(Exception):  # the object's own code failed
        name = str(value.__name__)
    functions = (types.FunctionType, types.MethodType)
    if not isinstance(value, functions) or classes.is_foreign(value):
        return name
    code = repr(contents_of_code(value.__code__))
    return f"{name} {zlib.crc32(code.encode()):08x}"


def contents_of_code(code: types.CodeType) -> Any:
    """A function's code without line numbers, the same in each process."""
    return code.co_code, code.co_names, [_constant(each) for each in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return contents_of_code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    # The order of a set of strings differs between processes.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


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
