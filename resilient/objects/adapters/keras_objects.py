"""Keras objects: models and layers, optimizers, metrics, variables, seeds."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import keras

from resilient import keras_internals
from resilient.objects.adapters.base import Kind
from resilient.serialization import JSON
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.state.build import build_optimizer
from resilient.state.fingerprint import class_names, of_layers
from resilient.state.settings import Settings, parts_or_whole
from resilient.state.variables import Variable, variables_of


def parts_of(model: keras.layers.Layer) -> list[tuple[str, Any]]:
    """A model, or a layer; its layers, optimizer, losses and metrics, with names."""
    layers = model._flatten_layers(include_self=False)
    metrics = getattr(model, "metrics", [])
    given = keras_internals.arguments_of_compile(model)
    compiled = (
        (f"{name}{suffix}", each)
        for name in ("loss", "metrics", "weighted_metrics")
        for suffix, each in parts_or_whole(given.get(name)).items()
    )
    return [
        (type(model).__name__, model),
        *((f"layer {i} ({type(x).__name__})", x) for i, x in enumerate(layers)),
        ("optimizer", getattr(model, "optimizer", None)),
        *compiled,
        *((f"metric {i} ({type(x).__name__})", x) for i, x in enumerate(metrics)),
    ]


class LayerKind(Kind):
    """A model or a layer, with everything attached to it."""

    kind: ClassVar[str] = "Keras layer"

    def variables(self) -> Iterable[Variable]:
        return variables_of(self.value)

    def parts(self) -> Iterable[tuple[str, Any]]:
        return parts_of(self.value)

    def fingerprint(self) -> JSON | None:
        if not self.value.built:
            return None
        found = of_layers(self.value)
        if getattr(self.value, "compiled", False):
            found["identity"]["optimizer"] = class_names(self.value.optimizer)
        return found

    def built(self, places: Mapping[int, str]) -> JSON:
        optimizer, config = getattr(self.value, "optimizer", None), None
        with contextlib.suppress(NotEncodable, NotImplementedError, ValueError):
            if self.value.built:
                config = encode(self.value.get_build_config(), {}, "build config")
        is_compiled = bool(optimizer is not None and optimizer.built)
        return {"build": config, "compiled": is_compiled}

    def build(self, saved: JSON, places: Mapping[str, Any]) -> None:
        config = saved.get("build")
        if not self.value.built and config is not None:
            self.value.build_from_config(decode(config, {}))
        if saved.get("compiled"):
            build_optimizer(self.value)


class KerasOptimizerKind(Kind):
    """An optimizer, and which variables it was built for."""

    kind: ClassVar[str] = "Keras optimizer"

    def variables(self) -> Iterable[Variable]:
        return _listed("optimizer", self.value.variables if self.value.built else [])

    def parts(self) -> Iterable[tuple[str, Any]]:
        return [(type(self.value).__name__, self.value)]

    def fingerprint(self) -> JSON:
        identity = {"optimizer": class_names(self.value)}
        settings = Settings(self.value, whole=True).facts
        return {"identity": identity, "settings": settings, "determinism": {}}

    def built(self, places: Mapping[int, str]) -> JSON:
        if not self.value.built:
            return {}
        trained = self.value._trainable_variables
        return {"for": [places.get(id(variable), "") for variable in trained]}

    def build(self, saved: JSON, places: Mapping[str, Any]) -> None:
        names = saved.get("for", [])
        if names and not self.value.built and set(names) <= places.keys():
            with keras.name_scope(self.value.name, caller=self.value):  # as in `apply`
                self.value.build([places[name] for name in names])


class MetricKind(Kind):
    """A metric."""

    kind: ClassVar[str] = "Keras metric"

    def variables(self) -> Iterable[Variable]:
        return _listed("metrics", self.value.variables)


class SeedKind(Kind):
    """A seed generator."""

    kind: ClassVar[str] = "Keras seed generator"

    def variables(self) -> Iterable[Variable]:
        return _listed("non_trainable", [self.value.state])


class KerasVariableKind(Kind):
    """A single variable."""

    kind: ClassVar[str] = "Keras variable"

    def variables(self) -> Iterable[Variable]:
        group = "trainable" if self.value.trainable else "non_trainable"
        return _listed(group, [self.value])


def _listed(group: str, variables: Iterable[Any]) -> list[Variable]:
    return [(group, index, each.path, each) for index, each in enumerate(variables)]


KINDS: dict[type, type[Kind]] = {
    keras.layers.Layer: LayerKind,
    keras.optimizers.Optimizer: KerasOptimizerKind,
    keras.metrics.Metric: MetricKind,
    keras.random.SeedGenerator: SeedKind,
    keras.Variable: KerasVariableKind,
}
