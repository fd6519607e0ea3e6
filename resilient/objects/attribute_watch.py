"""Notices Python values of models, layers and the like that training changed.

A step counter in ``train_step``, a dropout rate set by a callback: they are no
variables. Where each step runs as Python they are kept and put back. A traced step has
baked in some of them, and setting them back would not undo that: they are named once.
What has to last belongs in a ``keras.Variable``, in a callback's attributes, or in
``stateful``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from resilient.objects.makeup.values import held

_PLAIN = (bool, int, float, str, type(None), np.generic)
# Set by Keras itself in the course of every fit.
_KERAS = frozenset(
    {"built", "training", "stop_training", "stop_evaluating", "stop_predicting"}
)


class AttributeWatch:
    """Plain public attributes, as they were when training began.

    Args:
        parts: What to look at, with names for people.
        but: Names of attributes of a part that are somebody else's business.
    """

    def __init__(
        self,
        parts: Iterable[tuple[str, Any]],
        but: Callable[[Any], Collection[str]] = lambda part: (),
    ) -> None:
        # The objects themselves: layers get other places when a model is built.
        self._before = [(name, part, _plain(part, but(part))) for name, part in parts]

    def changed(self) -> dict[str, Any]:
        """Attributes with another value than when training began, and that value."""
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
        return found

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Set attributes to what they were then, all others as training began.

        Args:
            changed: What ``changed`` returned.
        """
        for name, part, before in self._before:
            for attribute, old in before.items():
                value = changed.get(f"{name}.{attribute}", old)
                if repr(vars(part).get(attribute)) != repr(value):
                    setattr(part, attribute, value)


def parts_of(model: keras.layers.Layer) -> list[tuple[str, Any]]:
    """A model, or a layer; its layers, optimizer, losses and metrics, with names."""
    layers = model._flatten_layers(include_self=False)
    loss = getattr(model, "loss", None)
    losses = held(loss) if isinstance(loss, list | tuple | dict) else {"": loss}
    metrics = getattr(model, "metrics", [])
    return [
        (type(model).__name__, model),
        *((f"layer {i} ({type(x).__name__})", x) for i, x in enumerate(layers)),
        ("optimizer", getattr(model, "optimizer", None)),
        *((f"loss{key}", each) for key, each in losses.items()),
        *((f"metric {i} ({type(x).__name__})", x) for i, x in enumerate(metrics)),
    ]


def is_value(value: Any) -> bool:
    """Whether a checkpoint can hold it: not of a class of the user's own."""
    return type(value) in _PLAIN or isinstance(value, np.generic)


def _plain(thing: Any, but: Collection[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in getattr(thing, "__dict__", {}).items()
        if not name.startswith("_")
        and name not in _KERAS
        and name not in but
        and isinstance(value, _PLAIN)
    }
