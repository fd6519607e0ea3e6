"""Notices Python values of models, layers and the like that training changed.

A step counter in ``train_step``, a dropout rate set by a callback: they are no
variables, so no checkpoint holds them, and setting them back would not undo what a
traced step has baked in. They are named once. What has to last belongs in a
``keras.Variable``, in a callback's attributes, or in ``stateful``.
"""

from collections.abc import Iterable
from typing import Any

import keras

_PLAIN = (bool, int, float, str, type(None))
# Set by Keras itself in the course of every fit.
_KERAS = frozenset(
    {"built", "training", "stop_training", "stop_evaluating", "stop_predicting"}
)


class PythonState:
    """Plain public attributes, as they were when training began.

    Args:
        parts: What to look at, with names for people.
    """

    def __init__(self, parts: Iterable[tuple[str, Any]]) -> None:
        # The objects themselves: layers get other places when a model is built.
        self._before = [(name, part, _plain(part)) for name, part in parts]

    def changed(self) -> list[str]:
        """Names of attributes with another value than when training began."""
        found = []
        for name, part, before in self._before:
            now = _plain(part) if before else {}
            found += [
                f"{name}.{attribute}"
                for attribute, old in before.items()
                if attribute in now and repr(now[attribute]) != repr(old)
            ]
        return found


def parts_of(model: keras.layers.Layer) -> list[tuple[str, Any]]:
    """A model, or a layer; its layers, optimizer, loss and metrics, with names."""
    layers = model._flatten_layers(include_self=False)
    compiled = [(name, getattr(model, name, None)) for name in ("optimizer", "loss")]
    metrics = getattr(model, "metrics", [])
    return [
        (type(model).__name__, model),
        *((f"layer {i} ({type(x).__name__})", x) for i, x in enumerate(layers)),
        *((f"{name} ({type(x).__name__})", x) for name, x in compiled),
        *((f"metric {i} ({type(x).__name__})", x) for i, x in enumerate(metrics)),
    ]


def _plain(thing: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in getattr(thing, "__dict__", {}).items()
        if not name.startswith("_") and name not in _KERAS and isinstance(value, _PLAIN)
    }
