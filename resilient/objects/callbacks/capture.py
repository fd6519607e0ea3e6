"""What Keras's callbacks know: captured between batches, put back in a new process.

A callback with ``state_dict`` and ``load_state_dict`` is asked. Of any other, what
changed since training began is kept (see ``attributes``), and for callbacks that write
files, how far those were written (see ``files`` and ``tensorboard``).

Refuses callbacks of other classes or in another order than those of the checkpoint, and
a ``state_dict()`` that is not made of plain values and arrays. What closures and
lambdas remember cannot be seen and is not captured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.errors import (
    CheckpointMismatchError,
    warn_not_exact,
)
from resilient.objects import kinds
from resilient.objects.attributes import Attributes
from resilient.objects.callbacks.files import Special, special
from resilient.objects.traversal import Action, Arrays, Place, Walk
from resilient.serialization import Encoded
from resilient.serialization.json_values import (
    decode,
    missing_names,
)
from resilient.serialization.state_dict import encoded_state
from resilient.state import variables


class CallbackStates:
    """The state of all callbacks of one ``fit``.

    Make it right after every callback's ``on_train_begin``: what is changed later is
    state, what is there already is configuration.

    Args:
        callbacks: Those of Keras's ``CallbackList``, in its order.
        attempts: The processes that worked on this run before and died: mappings with
            ``host``, ``pid`` and the start, ``started`` or ``time``, in seconds.
        since: Of an earlier ``fit`` in this process, which is being undone: what these
            callbacks were then counts as their beginning.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        attempts: Sequence[Mapping[str, Any]] = (),
        since: "CallbackStates | None" = None,
    ) -> None:
        self._callbacks = list(callbacks)
        self._uncaptured: dict[str, None] = {}
        self._special: dict[int, Special] = {}
        self._attributes: dict[int, Attributes] = {}
        earlier = {} if since is None else since._beginnings()
        walk = self._walk({})
        for index, callback in enumerate(self._callbacks):
            extra = special(callback, attempts)
            if extra is not None:
                self._special[index] = extra
            if not kinds.has_state_dict(callback):
                skip = extra.skipped if extra is not None else frozenset()
                place = self._place(index)
                self._attributes[index] = earlier.get(id(callback)) or Attributes(
                    callback, walk, place, skip=skip
                )
        self._uncaptured.update(dict.fromkeys(walk.uncaptured))

    def _beginnings(self) -> dict[int, Attributes]:
        return {id(part.owner): part for part in self._attributes.values()}

    def capture(self, arrays: dict[str, np.ndarray]) -> list[Encoded]:
        """What every callback knows now.

        Args:
            arrays: Receives the larger arrays, not copied, under names that begin
                with ``callbacks.``.

        Raises:
            NotSupportedError: A ``state_dict()`` cannot be kept as JSON and arrays.
        """
        walk = self._walk(arrays)
        captured = []
        for index, callback in enumerate(self._callbacks):
            place = self._place(index)
            entry: dict[str, Encoded] = {"class": _class_name(callback), "state": None}
            if index in self._attributes:
                entry["state"] = self._attributes[index].capture(walk, place)
            else:
                entry["state_dict"] = encoded_state(
                    callback.state_dict(),
                    walk.arrays,
                    place.name,
                    f"callback {place.path}",
                )
            if index in self._special:
                name = f"{place.name}.special"
                entry["special"] = self._special[index].capture(walk.arrays, name)
            captured.append(entry)
        arrays.update(walk.arrays)
        self._uncaptured.update(dict.fromkeys(walk.uncaptured))
        return captured

    def begin_anew(self) -> None:
        """Undo what earlier attempts left in files; there is no checkpoint of them."""
        for extra in self._special.values():
            extra.begin_anew()

    def uncaptured(self) -> list[str]:
        """Attributes that no capture holds, as ``"MyCallback.attribute (type)"``."""
        return list(self._uncaptured)

    def differences(self, saved: Sequence[Encoded]) -> list[str]:
        """How the checkpoint's callbacks differ from these; empty if they do not.

        ``ProgbarLogger`` does not count: it is there or not by ``verbose``.
        """
        theirs = [entry["class"] for entry in saved if not _is_progress_bar(entry)]
        ours = [_class_name(self._callbacks[index]) for index in self._counted()]
        found = []
        if len(theirs) != len(ours):
            found.append(
                f"callbacks: the checkpoint has {len(theirs)} ({_names(theirs)}), "
                f"this run has {len(ours)} ({_names(ours)})"
            )
        for position, (old, new) in enumerate(zip(theirs, ours, strict=False), 1):
            if old != new:
                found.append(
                    f"callbacks: the checkpoint has {_short(old, new)} at position "
                    f"{position}, this run has {_short(new, old)}"
                )
        if not found:
            for index, entry in self._pairs(saved):
                found += self._unfit(index, entry)
        return found

    def _unfit(self, index: int, entry: Encoded) -> list[str]:
        """Why an entry of the right class cannot be restored all the same."""
        name = f"callbacks: {_class_name(self._callbacks[index])}"
        if (index in self._attributes) == ("state_dict" in entry):
            had = "had" if "state_dict" in entry else "had no"
            return [f"{name} {had} state_dict() and load_state_dict() when saved"]
        return [f"{name}: {missing}" for missing in missing_names(entry)]

    def restore(self, saved: Sequence[Encoded], arrays: Arrays) -> None:
        """Give every callback back what it knew. May be done again.

        Raises:
            CheckpointMismatchError: The callbacks differ, or what a callback refers to
                (a class, a function) is gone. Then nothing was changed.
        """
        problems = self.differences(saved)
        walk = self._walk(arrays)
        actions: list[Action] = []
        for index, entry in self._pairs(saved) if not problems else ():
            try:
                actions += self._plan(index, entry, walk)
            except (LookupError, ValueError) as error:  # arrays that are missing or odd
                problems.append(f"{_class_name(self._callbacks[index])}: {error}")
        if problems:
            raise CheckpointMismatchError(
                "The checkpoint's callbacks do not fit those of this run.",
                received="\n  " + "\n  ".join(problems),
                hint="Pass the callbacks of the run that saved it, in the same order.",
            )
        for action in actions:
            action()
        if walk.problems:
            warn_not_exact("parts of callbacks could not be restored", walk.problems)

    def _plan(self, index: int, entry: Encoded, walk: Walk) -> list[Action]:
        callback, place = self._callbacks[index], self._place(index)
        actions: list[Action] = []
        if index in self._attributes:
            part = self._attributes[index]
            actions += part.plan(walk, entry["state"], place)
        else:
            value = decode(entry["state_dict"], walk.arrays)
            actions.append(lambda: callback.load_state_dict(value))
        if index in self._special and entry.get("special") is not None:
            actions += self._special[index].plan(entry["special"], walk.arrays)
        return actions

    def _pairs(self, saved: Sequence[Encoded]) -> list[tuple[int, Encoded]]:
        """Which callback gets which entry; the progress bars find each other."""
        counted = [entry for entry in saved if not _is_progress_bar(entry)]
        pairs = list(zip(self._counted(), counted, strict=True))
        bars = [entry for entry in saved if _is_progress_bar(entry)]
        others = [i for i in range(len(self._callbacks)) if i not in self._counted()]
        return pairs + list(zip(others, bars, strict=False))

    def _counted(self) -> list[int]:
        return [
            index
            for index, callback in enumerate(self._callbacks)
            if not _is_progress_bar({"class": _class_name(callback)})
        ]

    def _place(self, index: int) -> Place:
        name = type(self._callbacks[index]).__qualname__
        return Place(f"callbacks.{index}", name.rpartition("<locals>.")[2])

    def _walk(self, arrays: Arrays) -> Walk:
        return Walk(self._callbacks, self._own_variables, arrays)

    def _own_variables(self) -> set[int]:
        """Ids of what is saved with the model that is trained."""
        models = [getattr(callback, "_model", None) for callback in self._callbacks]
        for model in models:
            if keras_internals.is_trainer(model):
                return {id(leaf.target) for leaf in variables.leaves(model)}
        return set()


def monitored(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The logs of an epoch's end that are single numbers, as floats."""
    found = {}
    for name, value in (logs or {}).items():
        try:
            array = np.asarray(value)
        except Exception:  # whatever a user's metric put there
            array = np.empty(0)
        if array.size == 1 and array.dtype.kind in "biuf":
            found[str(name)] = float(array.item())
    return found


def _class_name(callback: Any) -> str:
    """The public name where there is one: private modules move between versions."""
    cls = type(callback)
    if getattr(keras.callbacks, cls.__name__, None) is cls:
        return f"keras.callbacks.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_progress_bar(entry: Encoded) -> bool:
    return bool(entry["class"] == "keras.callbacks.ProgbarLogger")


def _short(name: str, other: str) -> str:
    """The class alone, unless only its module tells it from the other."""
    last = name.rpartition(".")[2]
    return name if last == other.rpartition(".")[2] else last


def _names(classes: Sequence[str]) -> str:
    return ", ".join(name.rpartition(".")[2] for name in classes) or "none"
