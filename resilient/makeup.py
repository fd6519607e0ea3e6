"""What a model trains with and no variable holds, and whether training changed it.

The optimizer, the loss and the metrics; the layers, which of their weights are trained,
and what each was made with (a dropout rate). A callback may put something else there in
the middle of training, and a resumed process begins with what the script makes. It
cannot be put back: a traced step goes on with what was there when it was traced, which
nobody can look up. So it is said when a checkpoint is made, and a resume is refused.

What a callback does before the first batch of every attempt is none of this: it only
has to be there when the checkpoint is put back.

Told from attributes that bear the names of constructors' arguments. ``get_config``
would read variables, which have no values while JAX trains, and saves would wait for
it.
"""

import inspect
import math
import operator
import weakref
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np

from resilient import fingerprint, keras_internals
from resilient.build import is_built

JSON = dict[str, Any]
Facts = dict[str, Any]

# Public attributes of a model that `compile` sets, and that are told by other means.
OF_COMPILE = ("compiled", "loss", "steps_per_execution")

# Arguments that say nothing about what is computed, or that variables hold, or that the
# fingerprint tells in its own way.
_LEFT_OUT = frozenset(
    {
        *("self", "args", "kwargs", "name", "dtype", "seed", "seed_generator", "build"),
        *("layers", "inputs", "outputs", "input_shape", "batch_shape"),
    }
)
_HANGING = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
_SETTINGS: "weakref.WeakKeyDictionary[type, tuple[str, ...]]" = (
    weakref.WeakKeyDictionary()
)
_DEPTH, _ITEMS = 5, 64
# What the names of facts begin with that building settles: of layers and of metrics.
_OF_LAYERS, _METRICS = "layer", ("metrics[", "weighted_metrics[")


class Makeup:
    """What one model trains with: as the script made it, at the first batch, and now.

    Args:
        model: The compiled model, before any callback was told anything.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._seen = _Look(model)
        self._script = self._seen.facts
        self._began: Facts | None = None
        self._built, self._settled = is_built(model), False

    def built(self) -> None:
        """The model and its metrics may be built now, as a first step leaves them."""
        if self._settled:
            return
        late = _METRICS if self._built else (*_METRICS, _OF_LAYERS)
        self._settled = self._built or is_built(self._model)
        self._script = self._settle(self._script, late)
        if self._began is not None:
            self._began = self._settle(self._began, late)

    def begin(self) -> None:
        """The first batch is about to be trained, and the step to be traced."""
        if self._began is None:
            self._began = self.now()

    def now(self) -> Facts:
        """What it trains with, by name."""
        if self._seen.is_old(self._model):
            self._seen = _Look(self._model)
        return self._seen.facts

    def to_json(self, but: Collection[str] = ()) -> JSON:
        """For a checkpoint: what is not as the script made it; empty if all is.

        Args:
            but: Names of facts that are put back.

        Returns:
            ``script``: what differs from what the script made; ``now`` and ``then``:
            what is another than at the first batch.
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
        """Why a checkpoint cannot be put into this model as it is now.

        Args:
            saved: What ``to_json`` returned.
            but: Names of facts that are put back.
        """
        now = self.now()
        theirs = self._script | saved.get("script", {})
        names = _changed(theirs, now, but)
        return fingerprint.differences(
            {name: theirs.get(name) for name in names},
            {name: now.get(name) for name in names},
        )

    def _settle(self, facts: Facts, late: tuple[str, ...]) -> Facts:
        """``facts``, but those whose names begin with ``late`` as they are now."""
        now = self.now()
        settled = {
            **{k: v for k, v in facts.items() if not k.startswith(late)},
            **{k: v for k, v in now.items() if k.startswith(late)},
        }
        return now if settled == now else settled


def changes(saved: JSON, but: Collection[str] = ()) -> list[str]:
    """What changed in mid-training, one line each: no resume can follow that.

    Args:
        saved: What ``Makeup.to_json`` returned.
        but: Names of facts to leave out.
    """
    now, then = (
        {name: value for name, value in saved.get(key, {}).items() if name not in but}
        for key in ("now", "then")
    )
    return fingerprint.differences(now, then, other="training began with")


def is_eager(model: keras.Model) -> bool:
    """Whether each step reads attributes anew, and none is baked into a traced one."""
    compiled = keras_internals.BACKEND != "torch" or model.jit_compile
    return bool(model.run_eagerly) or not compiled


def settings_of(cls: type) -> tuple[str, ...]:
    """Names of what an object of this class is made with."""
    known = _SETTINGS.get(cls)
    if known is not None:
        return known
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            names.update(dict.fromkeys(inspect.signature(init).parameters))
    # The arguments of the function that a loss or a metric wraps are a setting as well.
    found = tuple(
        name
        for name in (*names, "fn_kwargs")
        if name not in _LEFT_OUT and not name.endswith("_initializer")
    )
    _SETTINGS[cls] = found
    return found


class _Look:
    """One look at a model.

    Args:
        model: The model.

    Attributes:
        facts: What was seen, by name.
    """

    def __init__(self, model: keras.Model) -> None:
        self.facts: Facts = {}
        self._read: list[tuple[Mapping[str, Any], str, Any]] = []
        self._layers = model._flatten_layers()
        self._weights = list(model.variables)
        self._flags = _flags(model)
        self._arguments = keras_internals.arguments_of_compile(model)
        self._trained = [weight.trainable for weight in self._weights]
        self._look(model)

    def is_old(self, model: keras.Model) -> bool:
        """Whether anything that was looked at is another now."""
        layers = model._flatten_layers()
        return not (
            len(layers) == len(self._layers)
            and all(map(operator.is_, layers, self._layers))
            and keras_internals.arguments_of_compile(model) is self._arguments
            and _flags(model) == self._flags
            and [weight.trainable for weight in self._weights] == self._trained
            and all(read.get(key) is value for read, key, value in self._read)
        )

    def _look(self, model: keras.Model) -> None:
        self.facts.update(self._flags)
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            self._tell(name, self._arguments.get(name))
        for number, layer in enumerate(self._layers):
            kind = type(layer).__name__
            place = f"layer {number - 1} ({kind})" if number else kind
            self._tell_settings(place, layer, 0)
            # Also other optimizers than the one that the model is compiled with.
            for key, value in list(vars(layer).items()):
                if isinstance(value, _HANGING) and not key.startswith("_"):
                    name = f"{place}.{key}" if number or key != "optimizer" else key
                    self._watch(vars(layer), key)
                    self._tell(name, value)
        kinds = [type(layer).__name__ for layer in self._layers[1:]]
        frozen = [i for i, trained in enumerate(self._trained) if not trained]
        self.facts[f"{_OF_LAYERS}s"] = kinds
        self.facts[f"{_OF_LAYERS}s' variables that are not trained"] = frozen

    def _watch(self, attributes: Mapping[str, Any], key: str) -> Any:
        value = attributes[key]
        self._read.append((attributes, key, value))
        return value

    def _tell_settings(self, name: str, thing: Any, depth: int) -> None:
        attributes = getattr(thing, "__dict__", {})
        for setting in settings_of(type(thing)):
            key = setting if setting in attributes else f"_{setting}"
            if key in attributes:
                value = self._watch(attributes, key)
                self._tell(f"{name}.{setting}", value, depth + 1)

    def _tell(self, name: str, value: Any, depth: int = 0) -> None:
        if isinstance(value, (list, tuple, dict)):
            items = list(value.items() if isinstance(value, dict) else enumerate(value))
            self.facts[name] = f"{type(value).__name__} of {len(items)}"
            for key, item in items[:_ITEMS] if depth <= _DEPTH else ():
                self._tell(f"{name}[{key!r}]", item, depth + 1)
            return
        self.facts[name] = _plain(value)
        own = isinstance(value, (keras.layers.Layer, keras.Variable))  # seen elsewhere
        if not own and hasattr(value, "get_config") and depth <= _DEPTH:
            self._tell_settings(name, value, depth)


def _flags(model: keras.Model) -> Facts:
    return {
        "run_eagerly": bool(model.run_eagerly),
        "jit_compile": bool(model.jit_compile),
        "steps_per_execution": int(model.steps_per_execution),
    }


def _plain(value: Any) -> Any:
    """A number or a text as it is, of anything else what it is called."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        # Strict JSON has no infinity.
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (int, str)):  # as JSON gives it back, also an enumeration's
        return int(value) if isinstance(value, int) else str(value)
    name: str = getattr(value, "__name__", type(value).__name__)
    code = getattr(value, "__code__", None)
    if code is None or name != "<lambda>":
        return name
    plain = [c for c in code.co_consts if not hasattr(c, "co_code")]
    return f"{name} {zlib.crc32(code.co_code + repr(plain).encode()):08x}"


def _changed(before: Facts, now: Facts, but: Collection[str]) -> list[str]:
    if before == now:
        return []
    names = (*before, *(name for name in now if name not in before))
    different = (n for n in names if repr(before.get(n)) != repr(now.get(n)))
    return [name for name in different if name not in but]
