"""TensorFlow objects: modules, variables, random generators."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from resilient.errors import NotSupportedError
from resilient.objects.adapters import keras_objects
from resilient.objects.adapters.base import Kind, require_backend
from resilient.serialization import Encoded
from resilient.state.variables import Variable


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of a TensorFlow object; None for other objects."""
    found = next((k for cls, k in _KINDS.items() if isinstance(value, cls)), None)
    if found is None:
        return None
    require_backend("tensorflow", name, value)
    return found(value)


class TensorFlowVariableKind(Kind):
    """A single variable."""

    kind: ClassVar[str] = "TensorFlow variable"

    def strategy(self) -> Any:
        return next(
            (
                variable.distribute_strategy
                for _, _, _, variable in self.variables()
                if isinstance(variable, tf.distribute.DistributedValues)
            ),
            None,
        )

    def variables(self) -> Iterable[Variable]:
        group, path, variable = _described(self.value)
        yield group, 0, path, variable


class TensorFlowModuleKind(TensorFlowVariableKind):
    """A module, with its Keras objects, which TensorFlow does not list.

    Raises:
        NotSupportedError: It holds something that cannot be saved with it.
    """

    kind: ClassVar[str] = "TensorFlow module"

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        for name, held in self._held():
            tables = {cls.__name__ for cls in type(held).__mro__} & _TABLES
            if tables or isinstance(held, tf.data.Iterator):
                raise NotSupportedError(
                    "A module holds something that cannot be saved with it.",
                    received=f"{name}, a {type(held).__name__}",
                    hint="Pass an iterator to Run under its own name; keep a table's "
                    "entries in variables.",
                )

    def variables(self) -> Iterable[Variable]:
        count: Counter[str] = Counter()
        for group, path, variable in self._all():
            yield group, count[group], path, variable
            count[group] += 1

    def parts(self) -> Iterable[tuple[str, Any]]:
        for number, module in enumerate((self.value, *self.value.submodules)):
            yield f"module {number} ({type(module).__name__})", module
        for name, held in self._held():
            kind = keras_objects.kind_of(name, held)
            for part, value in kind.parts() if kind else ():
                yield f"{name} {part}", value

    def _all(self) -> Iterator[tuple[str, str, Any]]:
        for variable in self.value.variables:
            yield _described(variable)
        for name, held in self._held():
            random = isinstance(held, tf.random.Generator)
            kind = (
                TensorFlowGeneratorKind(held)
                if random
                else keras_objects.kind_of(name, held)
            )
            for group, _, path, variable in kind.variables() if kind else ():
                yield group, f"{name}/{path}", variable

    def _held(self) -> Iterator[tuple[str, Any]]:
        """The attributes of the module and its submodules, containers flattened."""
        for module in (self.value, *self.value.submodules):
            for name, held in vars(module).items():
                if name.startswith(
                    "_self_"
                ):  # TensorFlow's own record of the other attributes
                    continue
                nested = isinstance(held, list | tuple | dict)
                for each in tf.nest.flatten(held) if nested else [held]:
                    yield name, each


class TensorFlowGeneratorKind(Kind):
    """A ``tf.random.Generator``."""

    kind: ClassVar[str] = "TensorFlow random generator"
    schema: ClassVar[Any] = int

    def variables(self) -> Iterable[Variable]:
        yield "non_trainable", 0, "state", self.value.state

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        return int(self.value.algorithm)

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = int(self.value.algorithm)
        if saved == live:
            return []
        return [f"{name}: the checkpoint has algorithm {saved}, this run has {live}"]


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


# By name: TensorFlow's tables have no public base class.
_TABLES = {"LookupInterface"}

_KINDS: dict[type, type[Kind]] = {
    tf.Module: TensorFlowModuleKind,
    tf.Variable: TensorFlowVariableKind,
    tf.random.Generator: TensorFlowGeneratorKind,
}
