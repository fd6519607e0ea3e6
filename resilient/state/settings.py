"""Reads the settings of a model, a layer or an optimizer, each under a name.

They are read from attributes named like constructor arguments: those of layers,
optimizers, losses and metrics, and of what these hold, such as an inner optimizer, a
schedule or a regularizer. ``get_config`` would read variables, which have no values
while JAX trains; only objects of the user's own are asked for it, before training.
"""

import contextlib
import enum
import functools
import inspect
import itertools
import operator
import os
import re
import types
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.backends.arrays import as_bytes
from resilient.once import once
from resilient.serialization import JSON, classes
from resilient.serialization.json_values import key_path
from resilient.serialization.schema import strict
from resilient.state.functions import global_names

OF_LAYERS = "layer"  # prefix of the names of facts about layers

_DEPTH = 5
_ATTACHED = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
# Arguments of `compile` that may be containers.
_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics")
# Arguments that do not affect what is computed, are held by variables, or are compared
# elsewhere. Seeds differ by process if the script gives none, and are restored.
_LEFT_OUT = frozenset(
    {
        *("self", "args", "kwargs", "name", "dtype", "seed", "seed_generator", "build"),
        *("layers", "inputs", "outputs", "input_shape", "batch_shape", "module"),
        *("batch_input_shape", "input_tensor"),
    }
)
# Settings that are not arguments: those of the function that a loss or a metric wraps,
# and which variables an optimizer does not decay.
_NO_ARGUMENTS = (
    *("fn_kwargs", "exclude_from_weight_decay", "exclude_from_weight_decay_pattern"),
)
_LIBRARIES = ("jax", "jaxlib", "tensorflow", "torch")
_LARGEST = 1 << 20  # elements of an array that are compared
_LONGEST = 1000  # items of a container
# Names of what functions refer to: the time, a directory, a rank...
REFERRED = re.compile(r".* (?:uses|remembers) .*|.*\.__self__.*")


class Settings:
    """The settings of one object, and a quick check whether they have changed.

    Args:
        thing: A layer, a model or an optimizer.
        whole: Whether to read what functions refer to and what arrays hold, too.

    Attributes:
        facts: The settings, by name.
        layers: The layer or model, and all layers in it.
        variables: Its variables.
    """

    def __init__(self, thing: Any, *, whole: bool = False) -> None:
        self.facts: JSON = {}
        self.layers: list[keras.layers.Layer] = []
        self.variables: list[Any] = []
        self._thing, self._whole = thing, whole
        # For a quick check that nothing has changed.
        self._attributes: list[tuple[Mapping[str, Any], str, Any]] = []
        self._containers: list[tuple[Any, list[Any]]] = []
        self._noted: set[int] = set()
        if isinstance(thing, keras.layers.Layer):
            self._read(thing)
        else:
            self._note("optimizer", thing)

    def is_old(self) -> bool:
        """Whether anything that was read has changed."""
        layers = self._thing._flatten_layers()
        return not (
            _are(layers, self.layers)
            and keras_internals.arguments_of_compile(self._thing) is self._arguments
            and _flags(self._thing, layers, self.variables) == self._flags
            and all(read.get(key) is value for read, key, value in self._attributes)
            and all(_are(items_of(each).values(), x) for each, x in self._containers)
        )

    def _read(self, model: keras.layers.Layer) -> None:
        self.layers = model._flatten_layers()
        self.variables = list(model.variables)
        self._flags = _flags(model, self.layers, self.variables)
        self._arguments = keras_internals.arguments_of_compile(model)
        if self._arguments:
            self.facts |= {
                "run_eagerly": bool(model.run_eagerly),
                "jit_compile": bool(model.jit_compile),
                "steps_per_execution": int(model.steps_per_execution),
            }
        for name in _COMPILED:
            self._note_argument(name, self._arguments.get(name))
        first = 1 if isinstance(model, keras.Model) else 0
        for number, layer in enumerate(self.layers, -first):
            kind = type(layer).__name__
            place = kind if number < 0 else f"{OF_LAYERS} {number} ({kind})"
            self._note_settings(place, layer, 0)
            self.facts[f"{place}.dtype_policy"] = layer.dtype_policy.name
            # Also optimizers other than the one that the model is compiled with.
            for key, value in list(vars(layer).items()):
                known = key.startswith("_") or (key == "loss" and layer is model)
                if isinstance(value, _ATTACHED) and not known:
                    own = layer is model and key == "optimizer"
                    self._watch(vars(layer), key)
                    self._note(key if own else f"{place}.{key}", value)
            for index, each in enumerate(getattr(layer, "operations", ())):
                if not isinstance(each, keras.layers.Layer):
                    within = f"{place} " * (number >= 0)
                    name = f"{within}operation {index} ({type(each).__name__})"
                    self._note_settings(name, each, 0)
        for number, variable in enumerate(self.variables):
            for key in ("regularizer", "constraint"):
                value = getattr(variable, key, None)
                if value is not None and id(value) not in self._noted:
                    name = f"{OF_LAYERS}s' variable {number} ({variable.name}).{key}"
                    self._note(name, value)

    def _note_own(self, name: str, thing: Any, depth: int) -> None:
        """The code of a class of the user's, and the plain values in the config."""
        cls = type(thing)
        if classes.is_foreign(cls):
            return
        if methods := [each for base in cls.__mro__ for each in _methods(base)]:
            code = [(key, contents_of_code(each.__code__)) for key, each in methods]
            self.facts[f"{name}: code"] = _checked(cls.__name__, code)
            self._note_class(cls, methods, depth)
        config = {} if isinstance(thing, keras.Model) else raw_config(thing)
        for key, value in config.items():
            known = key in _LEFT_OUT or f"{name}.{key}" in self.facts
            if not known and _is_plain(value):
                self._note(f"{name}.{key}", value)

    def _note_class(self, cls: type, methods: list[Any], depth: int) -> None:
        """What all objects of a class of the user's share, and its methods use."""
        if id(cls) in self._noted:
            return
        self._noted.add(id(cls))
        for base in itertools.filterfalse(classes.is_of_others, cls.__mro__):
            for key, value in vars(base).items():
                if _is_plain(value) and classes.is_attribute(key):
                    self._note(f"{cls.__name__}.{key}", value, depth + 1)
        for key, method in methods:
            for suffix, item in _inside_function(method).items():
                self._note(f"{cls.__name__}.{key}{suffix}", item, depth + 1)

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
        if self._whole:
            self._note_own(name, thing, depth)

    def _note_argument(self, name: str, value: Any, depth: int = 0) -> None:
        """An argument of ``compile``, and the losses and metrics in it."""
        inner = items_of(value)
        if not inner or depth > _DEPTH:
            self._note(name, value, depth)
            return
        if not self._whole:
            self.facts[name] = f"{type(value).__name__} of {len(value)}"
        self._containers.append((value, [*inner.values()]))
        for suffix, item in inner.items():
            self._note_argument(f"{name}{suffix}", item, depth + 1)

    def _note(self, name: str, value: Any, depth: int = 0) -> None:
        """A setting, and the settings of what is in it."""
        if value is None:  # as if it were not there
            return
        if self._whole and _is_path(value):  # where a process keeps its files
            return
        if isinstance(value, (list, tuple, dict)) and len(value) > _LONGEST:
            self.facts[name] = f"{type(value).__name__} of {len(value)}"
            return
        if not (self._whole and items_of(value)) or _is_plain(value):
            found = self._described(value)
            long = isinstance(found, list) and len(repr(found)) > 10 * _LONGEST
            self.facts[name] = _checked(type(value).__name__, found) if long else found
        elsewhere = isinstance(value, (keras.layers.Layer, keras.Variable))
        if elsewhere or depth > _DEPTH or id(value) in self._noted:
            return
        for inner, each in optimizers(value, name):
            if each is not value:
                self._note(inner, each, depth + 1)
        if self._whole and not _is_plain(value):
            if isinstance(value, (types.FunctionType, list, dict)):  # once is enough
                self._noted.add(id(value))
            inside = items_of(value) | _inside_function(value)
            for suffix, item in inside.items():
                self._note(f"{name}{suffix}", item, depth + 1)
        if hasattr(type(value), "get_config") or classes.is_plain(type(value)):
            self._note_settings(name, value, depth)

    def _described(self, value: Any) -> Any:
        """A value as JSON: numbers, text and tuples of them; others by their names."""
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, tuple) or (self._whole and isinstance(value, list)):
            return [self._described(item) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return strict(float(value))
        if isinstance(value, (int, str)):  # as JSON returns it, also for an enumeration
            return int(value) if isinstance(value, int) else str(value)
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, re.Pattern):  # of names in the order of a set
            return "|".join(sorted(str(value.pattern).split("|")))
        if isinstance(value, set):
            return f"set of {len(value)}"
        of_library = classes.top_module(type(value)) in _LIBRARIES
        if isinstance(value, np.ndarray) or of_library:
            return _array(value) if self._whole else "array"
        name = type(value).__name__
        with contextlib.suppress(Exception):  # the object's own code failed
            name = str(value.__name__)
        functions = (types.FunctionType, types.MethodType)
        if not isinstance(value, functions) or classes.is_foreign(value):
            return name
        return _checked(name, contents_of_code(value.__code__))


def items_of(value: Any) -> dict[str, Any]:
    """The items of a list, tuple or dict, by the suffix of the name."""
    if isinstance(value, dict):
        return {key_path(key, i): x for i, (key, x) in enumerate(value.items())}
    if isinstance(value, (list, tuple)):
        return {f"[{index}]": item for index, item in enumerate(value)}
    return {}


def parts_or_whole(value: Any) -> dict[str, Any]:
    """The items of a container, or a value that has none, by an empty suffix."""
    return items_of(value) or {"": value}


@once
def settings_of(cls: type) -> tuple[str, ...]:
    """Names of the constructor arguments of a class."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            names.update(dict.fromkeys(inspect.signature(init).parameters))
    return tuple(
        name
        for name in (*names, *_NO_ARGUMENTS)
        if name not in _LEFT_OUT and not name.endswith("_initializer")
    )


def optimizers(
    optimizer: Any, name: str = "optimizer"
) -> Iterator[tuple[str, keras.optimizers.Optimizer]]:
    """An optimizer, and each optimizer that it holds, with names."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    yield name, optimizer
    for key, value in list(vars(optimizer).items()):
        inner = f"{name}.{key.lstrip('_')}"
        for suffix, item in parts_or_whole(value).items():
            # Not what TensorFlow tracks once more.
            if item is not optimizer and not key.startswith("_self_"):
                yield from optimizers(item, inner + suffix)


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


def _checked(name: str, contents: Any) -> str:
    return f"{name} {zlib.crc32(repr(contents).encode()):08x}"


def _methods(cls: type) -> list[tuple[str, types.FunctionType]]:
    """The functions of a class by name, if it is the user's."""
    if classes.is_of_others(cls):
        return []
    found = ((n, getattr(x, "__func__", x)) for n, x in sorted(vars(cls).items()))
    return [each for each in found if isinstance(each[1], types.FunctionType)]


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


def _inside_function(value: Any) -> dict[str, Any]:
    """What a function of the user's refers to, by the suffix of the name."""
    if isinstance(value, functools.partial):
        inner = items_of(value.args) | items_of(value.keywords)
        return {"()": value.func, **inner}
    function = value.__func__ if isinstance(value, types.MethodType) else value
    if not isinstance(function, types.FunctionType) or classes.is_foreign(function):
        return {}
    found = items_of(function.__defaults__) | items_of(function.__kwdefaults__)
    if isinstance(value, types.MethodType):
        found[".__self__"] = value.__self__
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            found[f" remembers {name}"] = cell.cell_contents
    for values, name in global_names(function):
        if not isinstance(values[name], (types.ModuleType, type)):
            found[f" uses {name}"] = values[name]
    return found


def _is_plain(value: Any) -> bool:
    """Whether it is JSON but for the types of its numbers."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


def _is_path(value: Any) -> bool:
    text = isinstance(value, str) and ("/" in value or "\\" in value)
    return text or isinstance(value, os.PathLike)


def _array(value: Any) -> str:
    """What an array or tensor holds, in short; it may be one of a trace."""
    with contextlib.suppress(Exception):
        array = np.asarray(keras.ops.convert_to_numpy(value))
        if array.size <= _LARGEST and not array.dtype.hasobject:
            checksum = zlib.crc32(as_bytes(array).data)
            return f"array {array.shape} {array.dtype} {checksum:08x}"
    return "array"


def _flags(
    model: Any, layers: list[keras.layers.Layer], variables: list[Any]
) -> list[Any]:
    """Settings that are not attributes named like arguments."""
    compiled = getattr(model, "compiled", False)
    return [
        compiled and (model.run_eagerly, model.jit_compile, model.steps_per_execution),
        *(layer.dtype_policy for layer in layers),
        *(variable.trainable for variable in variables),
        *(getattr(variable, "regularizer", None) for variable in variables),
        *(getattr(variable, "constraint", None) for variable in variables),
    ]


def _are(now: Iterable[Any], then: Iterable[Any]) -> bool:
    """Whether both are the very same objects."""
    now, then = list(now), list(then)
    return len(now) == len(then) and all(map(operator.is_, now, then))
