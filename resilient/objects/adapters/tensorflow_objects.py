"""TensorFlow objects: modules, variables, random generators."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import tensorflow as tf

from resilient.errors import NotSupportedError
from resilient.objects.adapters import keras_objects
from resilient.objects.adapters.base import Kind, find_kind
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

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        for name, held in self._held():
            # By name: TensorFlow's tables have no public base class.
            bases = [cls.__name__ for cls in type(held).__mro__]
            if "LookupInterface" in bases or isinstance(held, tf.data.Iterator):
                raise NotSupportedError(
                    "A module holds something that cannot be saved with it.",
                    received=f"{name}, a {type(held).__name__}",
                    hint="Pass an iterator to Run under its own name; keep a table's "
                    "entries in variables.",
                )

    def variables(self) -> Iterable[Variable]:
        found = [_described(variable) for variable in self.value.variables]
        for name, kind in self._kinds():
            found += [(g, f"{name}/{path}", v) for g, _, path, v in kind.variables()]
        count: Counter[str] = Counter()
        for group, path, variable in found:
            yield group, count[group], path, variable
            count[group] += 1

    def parts(self) -> Iterable[tuple[str, Any]]:
        for number, module in enumerate((self.value, *self.value.submodules)):
            yield f"module {number} ({type(module).__name__})", module
        for name, kind in self._kinds():
            for part, value in kind.parts():
                yield f"{name} {part}", value

    def _kinds(self) -> Iterator[tuple[str, Kind]]:
        """Attributes with variables that TensorFlow does not list."""
        kinds = {**keras_objects.KINDS, tf.random.Generator: TensorFlowGeneratorKind}
        for name, held in self._held():
            kind = find_kind(kinds, held)
            if kind is not None:
                yield name, kind(held)

    def _held(self) -> Iterator[tuple[str, Any]]:
        """The attributes of the module and its submodules, containers flattened."""
        for module in (self.value, *self.value.submodules):
            for name, held in vars(module).items():
                if not name.startswith("_self_"):  # TensorFlow's record of the others
                    for each in tf.nest.flatten(held):
                        yield name, each


class TensorFlowGeneratorKind(Kind):
    """A ``tf.random.Generator``."""

    kind: ClassVar[str] = "TensorFlow random generator"

    def variables(self) -> Iterable[Variable]:
        yield "non_trainable", 0, "state", self.value.state

    def facts(self) -> Any:
        return f"algorithm {int(self.value.algorithm)}"


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
