"""Detects changes to a model's training setup in the middle of training.

The setup is the optimizer, the loss and the metrics; the layers, which of their weights
are trainable, and their settings (a dropout rate). A callback may replace any of these
in mid-training, while a resumed process begins with what the script creates. That
cannot be restored: a traced step keeps what it was traced with, and cannot be asked
for it. So a save warns about it, and a resume is refused.

What a callback does before the first batch of every attempt is not such a change: it
only has to happen before the checkpoint is restored. What is inside the objects (items,
arrays, closures) is a matter of the tree of objects.
"""

from collections.abc import Collection
from typing import Any

import keras

from resilient import keras_internals
from resilient.serialization import JSON
from resilient.state import comparison
from resilient.state.build import is_built
from resilient.state.settings import OF_LAYERS, Settings

_Facts = dict[str, Any]

_NOT_TRAINED = f"{OF_LAYERS}s' variables that are not trained"
# Prefixes of facts that building determines, besides those of layers.
_METRICS = ("metrics[", "weighted_metrics[")


class TrainingSetup:
    """The setup of one model: as made by the script, at the first batch, and now.

    Args:
        model: The compiled model, before any callback is called.

    Attributes:
        settled: Whether the model and its metrics are built, and were read since.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._settings, self._facts = _read(model)
        self._script = self._facts
        self._began: _Facts | None = None
        self._built, self.settled = is_built(model), False

    def built(self) -> None:
        """Read anew: the model and its metrics may have been built."""
        if self.settled:
            return
        late = _METRICS if self._built else (*_METRICS, OF_LAYERS)
        self._settings, self._facts = _read(self._model)
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
        if self._settings.is_old():
            self._settings, self._facts = _read(self._model)
        return self._facts

    def to_json(self, but: Collection[str] = ()) -> JSON:
        """The differences from the script's setup, for a checkpoint; empty if none.

        Args:
            but: Names of facts that are restored.

        Returns:
            ``script``: differences from what the script made; ``changed``: a line about
            each difference from the first batch, which no resume can reproduce.
        """
        now, began = self.now(), self._began or self.now()
        if now is began is self._script:  # asked at each save
            return {}
        names = _changed(began, now, but)
        if any(name.endswith(".trainable") for name in names):  # consequences of that
            names = [name for name in names if name != _NOT_TRAINED]
        script = {name: now.get(name) for name in _changed(self._script, now, but)}
        lines = {
            name: f"{name}: {comparison.short(began.get(name))} when training began, "
            f"{comparison.short(now.get(name))} at the checkpoint"
            for name in names
        }
        return {"script": script, "changed": lines} if script or lines else {}

    def differences(self, saved: JSON, but: Collection[str] = ()) -> list[str]:
        """Why a checkpoint cannot be restored into the model in its current state.

        Args:
            saved: What ``to_json`` returned.
            but: Names of facts that are restored.
        """
        both = self._script | saved.get("script", {}), self.now()
        theirs, ours = (
            {name: fact for name, fact in facts.items() if name not in but}
            for facts in both
        )
        return comparison.differences(theirs, ours)

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


def _changed(before: _Facts, now: _Facts, but: Collection[str]) -> list[str]:
    return [
        name
        for name in (before | now if before != now else ())
        if name not in but and repr(before.get(name)) != repr(now.get(name))
    ]


def _read(model: keras.Model) -> tuple[Settings, _Facts]:
    """The settings, and these with the layers and with which variables are frozen."""
    settings = Settings(model)
    frozen = [i for i, each in enumerate(settings.variables) if not each.trainable]
    return settings, {
        **settings.facts,
        f"{OF_LAYERS}s": [type(layer).__name__ for layer in settings.layers[1:]],
        _NOT_TRAINED: frozen,
    }
