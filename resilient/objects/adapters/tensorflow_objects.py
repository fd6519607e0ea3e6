"""TensorFlow objects: modules, variables, random generators."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import tensorflow as tf

from resilient.errors import NotSupportedError
from resilient.objects.adapters import keras_objects
from resilient.objects.adapters.base import Kind, find_kind
from resilient.serialization import JSON
from resilient.state.variables import Variable


class TensorFlowVariableKind(Kind):
    """A single variable."""

    kind: ClassVar[str] = "TensorFlow variable"

    def variables(self) -> Iterable[Variable]:
        group, path, variable = _described(self.value)
        yield group, 0, path, variable


class TensorFlowModuleKind(Kind):
    """A module, with its Keras objects, which TensorFlow does not list.

    Raises:
        NotSupportedError: It holds something that cannot be saved with it.
    """

    kind: ClassVar[str] = "TensorFlow module"

    def variables(self) -> Iterable[Variable]:
        found = [_described(variable) for variable in self.value.variables]
        for name, kind in self._kinds():
            found += [(g, f"{name}/{path}", v) for g, _, path, v in kind.variables()]
        count: Counter[str] = Counter()
        for group, path, variable in found:
            yield group, count[group], path, variable
            count[group] += 1

    def parts(self) -> Iterable[tuple[str, Any]]:
        return [(type(self.value).__name__, self.value)]

    def _kinds(self) -> Iterator[tuple[str, Kind]]:
        """Attributes with variables that TensorFlow does not list."""
        kinds = {**keras_objects.KINDS, tf.random.Generator: TensorFlowGeneratorKind}
        for module in (self.value, *self.value.submodules):
            for name, held in vars(module).items():
                if name.startswith("_self_"):  # TensorFlow's record of the others
                    continue
                for each in tf.nest.flatten(held):
                    _require_variables(name, each)
                    if (kind := find_kind(kinds, each)) is not None:
                        yield name, kind(each)


class TensorFlowGeneratorKind(Kind):
    """A ``tf.random.Generator``."""

    kind: ClassVar[str] = "TensorFlow random generator"

    def variables(self) -> Iterable[Variable]:
        yield "non_trainable", 0, "state", self.value.state

    def facts(self) -> JSON:
        return {" algorithm": int(self.value.algorithm)}


def _require_variables(name: str, held: Any) -> None:
    """Raise for what a module holds that has state, but no variables."""
    # By name: TensorFlow's tables have no public base class.
    bases = [cls.__name__ for cls in type(held).__mro__]
    if "LookupInterface" in bases or isinstance(held, tf.data.Iterator):
        raise NotSupportedError(
            "A module holds something that cannot be saved with it.",
            received=f"{name}, a {type(held).__name__}",
            hint="Pass an iterator to Run under its own name; keep a table's "
            "entries in variables.",
        )


def _described(variable: Any) -> tuple[str, str, Any]:
    """Group and name of a variable, and the variable itself.

    Raises:
        NotSupportedError: It has no shape to compare.
    """
    if not variable.shape.is_fully_defined():
        raise NotSupportedError(
            "A variable of unknown shape cannot be compared.",
            received=f"{variable.name}, {variable.shape}",
            hint="Give the variable a shape.",
        )
    group = "trainable" if variable.trainable else "non_trainable"
    return group, variable.name.partition(":")[0], variable


KINDS: dict[type, type[Kind]] = {
    tf.Module: TensorFlowModuleKind,
    tf.Variable: TensorFlowVariableKind,
    tf.random.Generator: TensorFlowGeneratorKind,
}
