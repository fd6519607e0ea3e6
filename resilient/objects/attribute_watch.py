"""Watches plain Python attributes of models, layers and the like for changes.

A step counter in ``train_step`` or a dropout rate that a callback sets is not in a
variable. If each step runs as Python, such attributes are saved and restored. A traced
step has some of them baked in, which restoring could not undo: one warning names them.
State that must last belongs in a ``keras.Variable``, in a callback's attributes, or in
``stateful``. (A ``Tracker`` follows objects; Keras's own objects are too entangled for
that, and their variables are saved separately.)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.objects.training_setup.describe import held

_PLAIN = (bool, int, float, str, type(None), np.generic)
# Keras sets these, mostly in every fit.
_KERAS = frozenset(
    {
        *("built", "training", "stop_training", "stop_evaluating", "stop_predicting"),
        *("train_function", "test_function", "predict_function", "compiled", "name"),
        *("activity_regularizer", "autocast", "supports_jit", "steps_per_execution"),
    }
)


class AttributeWatch:
    """Plain public attributes, as they were when training began.

    Args:
        parts: The objects to watch, with names for messages.
        but: Returns the attributes of a part that are handled elsewhere.
        new: Also watch attributes that a model gains during training, as from a
            callback that stores its results there. (Layers create some when they are
            first called.)
    """

    def __init__(
        self,
        parts: Iterable[tuple[str, Any]],
        but: Callable[[Any], Collection[str]] = lambda part: (),
        *,
        new: bool = False,
    ) -> None:
        # The objects themselves: building a model renumbers its layers.
        self._but, self._new = but, new
        self._before = [(name, part, _plain(part, but(part))) for name, part in parts]

    def changed(self) -> dict[str, Any]:
        """The attributes that changed since training began, with their values."""
        found = {}
        for name, part, before in self._before:
            now = vars(part) if before else {}
            for attribute, old in before.items():
                new = now.get(attribute, old)
                if (
                    new is not old
                    and isinstance(new, _PLAIN)
                    and repr(new) != repr(old)
                ):
                    found[f"{name}.{attribute}"] = new
            if self._new and isinstance(part, keras.Model):
                new = _plain(part, {*before, *self._but(part)})
                found |= {f"{name}.{attribute}": new[attribute] for attribute in new}
        return found

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Set attributes to saved values, and all others to their initial values.

        Args:
            changed: What ``changed`` returned.
        """
        for name, part, before in self._before:
            for attribute, old in before.items():
                value = changed.get(f"{name}.{attribute}", old)
                if repr(vars(part).get(attribute)) != repr(value):
                    setattr(part, attribute, value)
            if self._new and isinstance(part, keras.Model):
                self._restore_new(name, part, before, changed)

    def _restore_new(
        self,
        name: str,
        model: keras.Model,
        before: Collection[str],
        changed: Mapping[str, Any],
    ) -> None:
        """Give a model the attributes that it gained during training."""
        # A checkpoint must not replace what the script or Keras defines, nor what a
        # class defines, unless that is just an attribute's initial value.
        defined = {*before, *self._but(model), *dir(keras.Model)}
        for key, value in changed.items():
            part, _, attribute = key.rpartition(".")
            if part != name or attribute in defined or not _is_own(attribute):
                continue
            there = vars(model).get(attribute, getattr(type(model), attribute, None))
            if isinstance(there, _PLAIN) and isinstance(value, _PLAIN):
                setattr(model, attribute, value)


def parts_of(model: keras.layers.Layer) -> list[tuple[str, Any]]:
    """A model, or a layer; its layers, optimizer, losses and metrics, with names."""
    layers = model._flatten_layers(include_self=False)
    loss = getattr(model, "loss", None)
    losses = held(loss) if isinstance(loss, list | tuple | dict) else {"": loss}
    metrics = [*getattr(model, "metrics", []), *_compiled_metrics(model)]
    return [
        (type(model).__name__, model),
        *((f"layer {i} ({type(x).__name__})", x) for i, x in enumerate(layers)),
        ("optimizer", getattr(model, "optimizer", None)),
        *((f"loss{key}", each) for key, each in losses.items()),
        *((f"metric {i} ({type(x).__name__})", x) for i, x in enumerate(metrics)),
    ]


def _compiled_metrics(model: keras.layers.Layer) -> Iterator[keras.metrics.Metric]:
    """The metrics passed to ``compile``; in ``model.metrics`` they are wrapped."""
    arguments = keras_internals.arguments_of_compile(model)
    waiting = [arguments.get("metrics"), arguments.get("weighted_metrics")]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, keras.metrics.Metric):
            yield each
        elif isinstance(each, list | tuple | dict):
            waiting += held(each).values()


def is_value(value: Any) -> bool:
    """Whether a checkpoint can hold it: not an object of a user-defined class."""
    return type(value) in _PLAIN or isinstance(value, np.generic)


def _is_own(attribute: str) -> bool:
    """Whether it is neither private nor set by Keras."""
    return not attribute.startswith("_") and attribute not in _KERAS


def _plain(thing: Any, but: Collection[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in getattr(thing, "__dict__", {}).items()
        if _is_own(name) and name not in but and isinstance(value, _PLAIN)
    }
