"""Objects of TensorFlow: modules, variables, random generators."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from resilient.loop.objects.base import JSON, Kind, require_backend
from resilient.loop.objects.tf_data_objects import IteratorKind
from resilient.state import Variable


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of an object of TensorFlow; None for what is none."""
    found = next((k for cls, k in _KINDS.items() if isinstance(value, cls)), None)
    if found is None:
        return None
    require_backend("tensorflow", name, value)
    return found(value)


class ModuleKind(Kind):
    """A module, or a single variable."""

    kind: ClassVar[str] = "TensorFlow module"

    def strategy(self) -> Any:
        return next(
            (
                variable.distribute_strategy
                for variable in self._all()
                if isinstance(variable, tf.distribute.DistributedValues)
            ),
            None,
        )

    def _all(self) -> Iterable[Any]:
        return list(self.value.variables)

    def variables(self) -> Iterable[Variable]:
        count: Counter[str] = Counter()
        for variable in self._all():
            group = "trainable" if variable.trainable else "non_trainable"
            yield group, count[group], variable.name.partition(":")[0], variable
            count[group] += 1


class VariableKind(ModuleKind):
    """A single variable."""

    kind: ClassVar[str] = "TensorFlow variable"

    def _all(self) -> Iterable[Any]:
        return [self.value]


class GeneratorKind(Kind):
    """A ``tf.random.Generator``."""

    kind: ClassVar[str] = "TensorFlow random generator"

    def variables(self) -> Iterable[Variable]:
        yield "non_trainable", 0, "state", self.value.state

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> JSON:
        return int(self.value.algorithm)

    def differences(self, name: str, saved: JSON) -> list[str]:
        live = int(self.value.algorithm)
        if saved == live:
            return []
        return [f"{name}: the checkpoint has algorithm {saved}, this run has {live}"]


_KINDS: dict[type, type[Kind]] = {
    tf.Module: ModuleKind,
    tf.Variable: VariableKind,
    tf.random.Generator: GeneratorKind,
    tf.data.Iterator: IteratorKind,
}
