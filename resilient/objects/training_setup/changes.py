"""Detects changes to a model's training setup in the middle of training.

The setup is the optimizer, the loss and the metrics; the layers, which of their weights
are trainable, and their settings (a dropout rate). A callback may replace any of these
in mid-training, while a resumed process begins with what the script creates. That
cannot be restored: a traced step keeps what it was traced with, which nobody can look
up. So a save warns about it, and a resume is refused.

What a callback does before the first batch of every attempt is not such a change: it
only has to happen before the checkpoint is restored.
"""

import re
from collections.abc import Collection

import keras

from resilient.objects.training_setup import describe
from resilient.objects.training_setup.look import (
    NOT_TRAINED,
    OF_LAYERS,
    Facts,
    Look,
)
from resilient.serialization import JSON
from resilient.state import difference
from resilient.state.build import is_built

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
        settled: Whether the model and its metrics are built, and were looked at since.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen = Look(model)
        self._script = self._seen.facts
        self._began: Facts | None = None
        self._built, self.settled = is_built(model), False
        self._moving: tuple[str, ...] | None = None

    def built(self) -> None:
        """Look again: the model and its metrics may have been built."""
        if self.settled:
            return
        if self._moving is None:
            self._moving = self._changed_by_the_first_batch()
        late = _METRICS if self._built else (*_METRICS, OF_LAYERS)
        self._seen = Look(self._model, before=self._seen)  # it has its variables now
        self.settled = self._built or is_built(self._model)
        self._script = self._settle(self._script, late)
        if self._began is not None:
            self._began = self._settle(self._began, late)

    def begin(self) -> None:
        """The first batch is about to be trained and the step traced."""
        if self._began is None:
            self._began = self.now()

    def now(self) -> Facts:
        """The setup, by name."""
        if self._seen.is_old(self._model):
            self._seen = Look(self._model, before=self._seen)
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

    def _changed(self, before: Facts, now: Facts, but: Collection[str]) -> list[str]:
        left_out = self._moving or ()
        names = _changed(before, now)
        return [n for n in names if n not in but and not n.startswith(left_out)]

    def _settle(self, facts: Facts, late: tuple[str, ...]) -> Facts:
        """``facts``, except that those beginning with ``late`` are current."""
        now = self.now()
        settled = {
            **{k: v for k, v in facts.items() if not k.startswith(late)},
            **{k: v for k, v in now.items() if k.startswith(late)},
        }
        return now if settled == now else settled


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
        names = [name for name in names if name != NOT_TRAINED]
    return [
        f"{name}: {difference.short(then.get(name))} when training began, "
        f"{difference.short(now.get(name))} at the checkpoint"
        for name in names
    ]


def _changed(before: Facts, now: Facts) -> list[str]:
    if before == now:
        return []
    names = (*before, *(name for name in now if name not in before))
    return [name for name in names if repr(before.get(name)) != repr(now.get(name))]
