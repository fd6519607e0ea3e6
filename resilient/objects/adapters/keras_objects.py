"""Keras objects: models and layers, optimizers, metrics, variables, seeds."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypedDict

import keras

from resilient import keras_internals
from resilient.objects.adapters.base import Kind
from resilient.objects.training_setup import TrainingSetup
from resilient.serialization import JSON, Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import NotEncodable, encode
from resilient.state import replicas
from resilient.state.build import build_optimizer, is_built
from resilient.state.fingerprint import class_names, of_layers
from resilient.state.settings import Settings, items_of, raw_config
from resilient.state.variables import Variable, variables_of


class _Layer(TypedDict):
    build: Any
    compiled: bool


_Optimizer = TypedDict("_Optimizer", {"class": str, "for": list[str] | None})


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of a Keras object; None for other objects."""
    if isinstance(value, keras.layers.Layer):
        return LayerKind(value)
    if isinstance(value, keras.optimizers.Optimizer):
        return KerasOptimizerKind(value)
    if isinstance(value, keras.metrics.Metric):
        return MetricKind(value)
    if isinstance(value, keras.random.SeedGenerator):
        return SeedKind(value)
    return KerasVariableKind(value) if isinstance(value, keras.Variable) else None


def parts_of(model: keras.layers.Layer) -> list[tuple[str, Any]]:
    """A model, or a layer; its layers, optimizer, losses and metrics, with names."""
    layers = model._flatten_layers(include_self=False)
    loss = getattr(model, "loss", None)
    losses = items_of(loss) or {"": loss}
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
        waiting += items_of(each).values()


class LayerKind(Kind):
    """A model or a layer, with everything attached to it."""

    kind: ClassVar[str] = "Keras layer"
    schema: ClassVar[Any] = _Layer
    _fingerprint: JSON | None = None

    def strategy(self) -> Any:
        return replicas.strategy_of(self.value)

    def variables(self) -> Iterable[Variable]:
        return variables_of(self.value)

    def parts(self) -> Iterable[tuple[str, Any]]:
        return parts_of(self.value)

    def setup(self) -> TrainingSetup | None:
        compiled = getattr(self.value, "compiled", False)
        return TrainingSetup(self.value) if compiled else None

    def fingerprint(self) -> JSON | None:
        if self._fingerprint is not None or not self.value.built:
            return self._fingerprint
        found = of_layers(self.value, raw_config(self.value))
        if getattr(self.value, "compiled", False):
            found["identity"]["optimizer"] = class_names(self.value.optimizer)
        if is_built(self.value):  # later changes by the loop do not count
            self._fingerprint = found
        return found

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        optimizer = getattr(self.value, "optimizer", None)
        return {
            "build": self._build_config(name) if self.value.built else None,
            "compiled": bool(optimizer is not None and optimizer.built),
        }

    def _build_config(self, name: str) -> Encoded:
        """The build config of the layer; None if unknown."""
        try:
            return encode(self.value.get_build_config(), {}, name)
        except (NotEncodable, NotImplementedError, ValueError):
            return None

    def build(self, saved: Encoded, known: Mapping[str, Any]) -> None:
        if not self.value.built and saved["build"] is not None:
            self.value.build_from_config(decode(saved["build"], {}))
        if saved["compiled"]:
            build_optimizer(self.value)


class KerasOptimizerKind(Kind):
    """An optimizer, and which variables it was built for."""

    kind: ClassVar[str] = "Keras optimizer"
    schema: ClassVar[Any] = _Optimizer
    _built_for: list[str] | None = None
    _fingerprint: JSON | None = None

    def variables(self) -> Iterable[Variable]:
        variables = self.value.variables if self.value.built else ()
        for index, variable in enumerate(variables):
            yield "optimizer", index, variable.path, variable

    def parts(self) -> Iterable[tuple[str, Any]]:
        return [(type(self.value).__name__, self.value)]

    def fingerprint(self) -> JSON:
        if self._fingerprint is None:
            settings = Settings(self.value, whole=True).facts
            self._fingerprint = {
                "identity": {},
                "settings": settings,
                "determinism": {},
            }
        return self._fingerprint

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        if self._built_for is None and self.value.built:
            trained = _innermost(self.value)._trainable_variables
            self._built_for = [known.get(id(variable), "") for variable in trained]
        return {"class": type(self.value).__name__, "for": self._built_for}

    def build(self, saved: Encoded, known: Mapping[str, Any]) -> None:
        names = saved["for"]
        if self.value.built or names is None or not all(n in known for n in names):
            return
        with keras.name_scope(self.value.name, caller=self.value):  # as in `apply`
            self.value.build([known[name] for name in names])

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = type(self.value).__name__
        if saved["class"] == live:
            return []
        return [f"{name}: the checkpoint has {saved['class']}, this run has {live}"]


class MetricKind(Kind):
    """A metric."""

    kind: ClassVar[str] = "Keras metric"

    def variables(self) -> Iterable[Variable]:
        for index, variable in enumerate(self.value.variables):
            yield "metrics", index, variable.path, variable


class SeedKind(Kind):
    """A seed generator."""

    kind: ClassVar[str] = "Keras seed generator"

    def variables(self) -> Iterable[Variable]:
        yield "non_trainable", 0, self.value.state.path, self.value.state


class KerasVariableKind(Kind):
    """A single variable."""

    kind: ClassVar[str] = "Keras variable"

    def variables(self) -> Iterable[Variable]:
        group = "trainable" if self.value.trainable else "non_trainable"
        yield group, 0, self.value.path, self.value


def _innermost(optimizer: Any) -> Any:
    """The innermost optimizer, inside its wrappers."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer
