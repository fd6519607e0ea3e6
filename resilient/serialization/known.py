"""Decides which classes and functions a value may refer to: the script's own.

A checkpoint holds names of classes and functions, and no name in it is ever looked up
in modules. A name only selects among what a place held when training began (an
attribute of a callback, the state of an object), the built-in types below, and what the
script has put into ``keras.saving.get_custom_objects()``. Anything else cannot be
encoded there either: a value is either restored, or reported as lost beforehand.
"""

import collections
import sys
from typing import Any

import numpy as np

from resilient.errors import CheckpointMismatchError
from resilient.serialization import classes

_TYPES = (
    *(bool, int, float, complex, str, bytes, bytearray, object),
    *(list, tuple, dict, set, frozenset, slice, range),
    *(collections.OrderedDict, collections.Counter, collections.deque),
    *(collections.defaultdict, np.ndarray),
    *{cls for cls in np.sctypeDict.values() if cls is not np.object_},
)
_UFUNCS = [value for value in vars(np).values() if isinstance(value, np.ufunc)]
_BUILT_IN = {classes.reference(each): each for each in (*_TYPES, *_UFUNCS)}


class NotKnownError(CheckpointMismatchError, LookupError):
    """A value refers to a class or function that the script does not hold there."""

    def __init__(self, name: object) -> None:
        super().__init__(
            "The checkpoint refers to a class or function that this script does not "
            "have in the same place.",
            received=str(name)[:200],
            hint="Run the script that saved it, or put the class or function into "
            "keras.saving.get_custom_objects(), under any name.",
        )


class Known:
    """What one place may refer to, by name.

    It learns from what is encoded until it is closed.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._closed = False

    def close(self) -> "Known":
        """From now on, refuse anything not met so far."""
        self._closed = True
        return self

    def admits(self, name: str, value: Any) -> bool:
        """Whether a value to be encoded may have this class, or be this function."""
        if not self._closed:
            self._objects[name] = value
        return self.get(name) is value

    def get(self, name: str) -> Any:
        """The class or function of this name, if any."""
        if name in self._objects:
            return self._objects[name]
        return _BUILT_IN[name] if name in _BUILT_IN else _of_keras().get(name)


NOTHING = Known().close()


def is_of_all(value: Any) -> bool:
    """Whether every place may refer to this class or function."""
    name = classes.reference(value)
    return name is not None and NOTHING.get(name) is value


def _of_keras() -> dict[str | None, Any]:
    """Registered objects, and those that Keras's callbacks compare with."""
    keras = sys.modules.get("keras")
    if keras is None:
        return {}
    custom = keras.saving.get_custom_objects().values()
    found = (keras.ops.less, keras.ops.greater, *custom)
    return {classes.reference(value): value for value in found}
