"""Notices Python values of model, layers, losses and metrics that training changed.

A step counter in ``train_step``, a dropout rate set by a callback: they are no
variables, so no checkpoint holds them, and setting them back would not undo what a
traced step has baked in. They are named once. What has to last belongs in a
``keras.Variable``, in a callback's attributes, or in ``stateful``.
"""

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
        model: The model that is about to train.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._before = {
            name: values for name, thing in _things(model) if (values := _plain(thing))
        }

    def changed(self) -> list[str]:
        """Names of attributes with another value than when training began."""
        found = []
        for name, thing in _things(self._model):
            now = _plain(thing)
            for attribute, old in self._before.get(name, {}).items():
                if attribute in now and repr(now[attribute]) != repr(old):
                    found.append(f"{name}.{attribute}")
        return found


def _things(model: keras.Model) -> list[tuple[str, Any]]:
    """Model, layers, optimizer, loss and metrics, each with a name."""
    layers = model._flatten_layers(include_self=False)
    metrics = getattr(model, "metrics", [])
    return [
        (type(model).__name__, model),
        *((f"layer {i} ({type(x).__name__})", x) for i, x in enumerate(layers)),
        (f"optimizer ({type(model.optimizer).__name__})", model.optimizer),
        (f"loss ({type(model.loss).__name__})", model.loss),
        *((f"metric {i} ({type(x).__name__})", x) for i, x in enumerate(metrics)),
    ]


def _plain(thing: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in getattr(thing, "__dict__", {}).items()
        if not name.startswith("_") and name not in _KERAS and isinstance(value, _PLAIN)
    }
