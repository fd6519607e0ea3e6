"""Detects changes to a model's training setup in the middle of training.

The setup is the optimizer, the loss and the metrics; the layers, which of their weights
are trainable, and their settings (a dropout rate). A callback may replace any of these
in mid-training, while a resumed process begins with what the script creates. That
cannot be restored: a traced step keeps what it was traced with, which nobody can look
up. So a save warns about it, and a resume is refused.

What a callback does before the first batch of every attempt is not such a change: it
only has to happen before the checkpoint is restored.

Settings are read from attributes named like constructor arguments. ``get_config`` would
read variables, which have no values while JAX trains, and saves would wait for it.
"""

import operator
import re
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.objects.training_setup import describe
from resilient.serialization import JSON
from resilient.state import difference
from resilient.state.build import is_built

_Facts = dict[str, Any]

# Prefix of the names of facts about layers.
_OF_LAYERS = "layer"
_NOT_TRAINED = f"{_OF_LAYERS}s' variables that are not trained"

_DEPTH = 5
_HANGING = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)

# Public attributes of a model that `compile` sets; they are compared elsewhere.
OF_COMPILE = ("compiled", "loss", "steps_per_execution")

# Prefixes of facts that building determines, besides those of layers.
_METRICS = ("metrics[", "weighted_metrics[")
# Facts of containers, arrays and tensors.
_CONTENT = re.compile(r"\w+ of \d+(, checksum \w+)?|array of .*|\w*(Tensor|Tracer)")
# Arguments of `compile` that are containers.
_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics")


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
        self._moving: tuple[str, ...] | None = None

    def built(self) -> None:
        """Read anew: the model and its metrics may have been built."""
        if self.settled:
            return
        if self._moving is None:
            self._moving = self._changed_by_the_first_batch()
        late = _METRICS if self._built else (*_METRICS, _OF_LAYERS)
        # Now the model has its variables.
        self._seen = _Reading(self._model, before=self._seen)
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
            self._seen = _Reading(self._model, before=self._seen)
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
        changed = self._changed(self._began or now, now, but)
        script = self._changed(self._script, now, but)
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
        names = self._changed(theirs, now, but)
        return difference.differences(
            {name: theirs.get(name) for name in names},
            {name: now.get(name) for name in names},
        )

    def _changed_by_the_first_batch(self) -> tuple[str, ...]:
        """Facts that every process changes in a first step, such as counters.

        Containers, arrays and functions only: numbers are compared elsewhere.
        """
        before, now = self._began or {}, self.now()
        found = dict[str, None]()
        for name in _changed(before, now):
            owner, inside, _ = name.rpartition("[")
            if describe.REMEMBERS in name or _CONTENT.fullmatch(str(now.get(name))):
                found[name] = None
            elif inside and owner not in _COMPILED:
                found[owner] = None
        return tuple(found)

    def _changed(self, before: _Facts, now: _Facts, but: Collection[str]) -> list[str]:
        left_out = self._moving or ()
        names = _changed(before, now)
        return [n for n in names if n not in but and not n.startswith(left_out)]

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


def _changed(before: _Facts, now: _Facts) -> list[str]:
    if before == now:
        return []
    names = (*before, *(name for name in now if name not in before))
    return [name for name in names if repr(before.get(name)) != repr(now.get(name))]


class _Reading:
    """What was read of a model, and a quick check whether it has changed.

    Args:
        model: The model.
        before: The previous reading. It knows tensors that may have been deleted, and
            what containers and functions held before steps changed it.

    Attributes:
        facts: The setup, by name.
    """

    def __init__(self, model: keras.Model, before: "_Reading | None" = None) -> None:
        self.facts: _Facts = {}
        # For a quick check that nothing has changed.
        self._attributes: list[tuple[Mapping[str, Any], str, Any]] = []
        self._containers: list[tuple[Any, tuple[Any, ...]]] = []
        self._arrays: list[tuple[Any, Any, Any]] = []
        self._fixed: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        self._before = before
        self._eager = is_eager(model)
        self._noted: set[int] = set()
        self._layers = model._flatten_layers()
        self._variables = list(model.variables)
        self._flags = _flags(model, self._layers, self._variables)
        self._arguments = keras_internals.arguments_of_compile(model)
        self._read(model)
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

    def _read(self, model: keras.Model) -> None:
        self.facts |= {
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            "steps_per_execution": int(model.steps_per_execution),
        }
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            self._note(name, self._arguments.get(name))
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

    def _watch(self, attributes: Mapping[str, Any], key: str) -> Any:
        value = attributes[key]
        self._attributes.append((attributes, key, value))
        return value

    def _note_settings(self, name: str, thing: Any, depth: int) -> None:
        self._noted.add(id(thing))
        attributes = getattr(thing, "__dict__", {})
        # These fill caches and logs at every call.
        fixed = isinstance(thing, (keras.layers.Layer, keras.metrics.Metric))
        for setting in describe.settings_of(type(thing)):
            key = setting if setting in attributes else f"_{setting}"
            if key in attributes:
                value = self._watch(attributes, key)
                self._note(f"{name}.{setting}", value, depth + 1, fixed=fixed)

    def _note(
        self, name: str, value: Any, depth: int = 0, *, fixed: bool = False
    ) -> None:
        """Describe a value; a ``fixed`` container by what it held when first seen."""
        if isinstance(value, (keras.layers.Layer, keras.Variable)):  # read elsewhere
            self.facts[name] = type(value).__name__
        elif describe.is_array(value):
            self._note_array(name, value)
        else:
            self.facts[name], held = self._content(value, fixed)
            if depth <= _DEPTH:
                for key, item in held.items():
                    self._note(f"{name}{key}", item, depth + 1, fixed=fixed)
                if hasattr(type(value), "get_config"):
                    self._note_settings(name, value, depth)

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

    def _note_array(self, name: str, array: Any) -> None:
        now = describe.version(array)
        known = self._before._arrays if self._before is not None else ()
        same = (fact for each, then, fact in known if each is array and then == now)
        fact = next(same, None) or describe.described(array)
        self.facts[name] = fact
        self._arrays.append((array, now, fact))


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
