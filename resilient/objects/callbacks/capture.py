"""Captures the state of Keras callbacks between batches, and restores it.

A callback with ``state_dict`` and ``load_state_dict`` is asked for its state. For all
others, what differs from the time before training is kept (see ``tree``), and for
callbacks that write files, how far these were written (see ``files``, ``tensorboard``).

It refuses callbacks whose classes or order differ from the checkpoint's (unless some
are gone that had no state), and a ``state_dict()`` that does not consist of plain
values and arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.errors import (
    CheckpointMismatchError,
    warn_not_exact,
)
from resilient.objects import kinds
from resilient.objects.adapters.keras_objects import parts_of
from resilient.objects.callbacks.files import CsvFile, ModelFile
from resilient.objects.callbacks.matching import describe, matched, size
from resilient.objects.callbacks.orbax import OrbaxSteps
from resilient.objects.callbacks.progress_bar import ProgressBar
from resilient.objects.callbacks.special import Action, Arrays, Special
from resilient.objects.callbacks.tensorboard import EventFiles
from resilient.objects.changes import changes, settle
from resilient.objects.restore import plan
from resilient.objects.training_setup import is_eager
from resilient.objects.tree import Scope, Tree, is_below
from resilient.serialization import Encoded, Entries
from resilient.serialization.decoding import decode
from resilient.serialization.schema import well_formed
from resilient.serialization.state_dict import encoded_state, known_in
from resilient.state import variables

_BAR = "keras.callbacks.ProgbarLogger"
_BARS = "callbacks.bar"  # prefix of their names
_SPECIAL: dict[str, type[Special]] = {
    "CSVLogger": CsvFile,
    "ModelCheckpoint": ModelFile,
    "OrbaxCheckpoint": OrbaxSteps,  # since Keras 3.14
    "ProgbarLogger": ProgressBar,
    "TensorBoard": EventFiles,
}


class CallbackStates:
    """The state of all callbacks of one ``fit``.

    Create it before ``on_train_begin``: what is there already is configuration. What
    changes later is state, and so is what it is made to ``learn``.

    Args:
        callbacks: Those of Keras's ``CallbackList``, in its order.
        attempts: The processes that worked on this run before and died: mappings with
            ``host``, ``pid`` and start time (``started`` or ``time``, in seconds).
        since: The state of an earlier ``fit`` in this process that is being undone:
            what these callbacks were then counts as their beginning.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: Any = None,
        *,
        attempts: Sequence[Mapping[str, Any]] = (),
        since: "CallbackStates | None" = None,
        apart: Sequence[Any] = (),
    ) -> None:
        self._callbacks = _named(callbacks)
        self._model = model
        self._special = {
            name: cls(callback, attempts)
            for name, callback in self._callbacks.items()
            for keras_name, cls in _SPECIAL.items()
            if isinstance(callback, getattr(keras.callbacks, keras_name, ()))
        }
        asked = {n: c for n, c in self._callbacks.items() if kinds.has_state_dict(c)}
        self._known = {n: known_in(c.state_dict) for n, c in asked.items()}
        self._tree: Tree = Tree(
            {n: c for n, c in self._callbacks.items() if n not in asked},
            {} if model is None else dict(parts_of(model)),
            Scope(
                own=self._own_variables,
                hidden={n: each.skipped for n, each in self._special.items()},
                traced=model is not None and not is_eager(model),
            ),
            since=since._tree if since is not None else None,
            apart=[*asked.values(), *apart],
        )

    def learn(self) -> None:
        """Every callback has seen ``on_train_begin``, or ``on_epoch_begin``."""
        self._tree.learn()

    def capture(self, arrays: dict[str, np.ndarray]) -> list[Encoded]:
        """The current state of every callback; see ``capture_all``."""
        return self.capture_all(arrays)[0]

    def capture_all(
        self, arrays: dict[str, np.ndarray]
    ) -> tuple[list[Encoded], Entries]:
        """The current state of every callback, and of what the model refers to.

        Args:
            arrays: Receives the larger arrays, not copied, under names that begin
                with the names of callbacks and layers.

        Raises:
            NotSupportedError: A ``state_dict()`` cannot be kept as JSON and arrays.
        """
        changed = changes(self._tree, arrays)
        captured = []
        for name, callback in self._callbacks.items():
            entry: dict[str, Encoded] = {"class": _class_name(callback)}
            if kinds.has_state_dict(callback):
                state, whose = callback.state_dict(), type(callback).__qualname__
                entry["state_dict"] = encoded_state(
                    state, arrays, name, whose, self._known[name]
                )
            else:
                mine = [home for home in changed if is_below(home, name)]
                entry["objects"] = {home: changed.pop(home) for home in mine}
            if name in self._special:
                special = self._special[name].capture(arrays, f"{name}.special")
                entry["special"] = special
            captured.append(entry)
        return captured, changed

    def begin_steps(self) -> None:
        """Every callback has seen the first ``on_epoch_begin``."""
        self.learn()
        self._tree.begin_steps()

    def settle(self) -> None:
        """The first step was done: learn what it made, and what tracing it changed."""
        self.learn()
        settle(self._tree)

    def lacks(self, saved: Entries) -> bool:
        """Whether the model is to refer to objects that only a step makes."""
        return self._tree.lacks(saved)

    def undo(self) -> None:
        """Undo what training did to what the model refers to."""
        plan(self._tree, {}, {}, only_step=True)()

    def in_steps(self) -> list[str]:
        """What changed although traced steps have baked it in."""
        return list(self._tree.baked)

    def begin_anew(self) -> None:
        """Undo what earlier attempts left in files, when there is no checkpoint."""
        for extra in self._special.values():
            extra.begin_anew()

    def uncaptured(self) -> list[str]:
        """Attributes that no capture holds, as ``"MyCallback.attribute (type)"``."""
        return list(self._tree.lost)

    def differences(self, saved: Sequence[Encoded]) -> list[str]:
        """How the checkpoint's callbacks differ from these; empty if they do not.

        ``ProgbarLogger`` does not count: ``verbose`` adds or removes it. Nor do those
        that are ``gone``.
        """
        gone = self.gone(saved)
        theirs = [entry["class"] for entry in saved if entry["class"] != _BAR]
        ours = [_class_name(each) for each in self._callbacks.values()]
        ours = [name for name in ours if name != _BAR]
        if [name for name in theirs if name not in gone] != ours:
            return [describe(theirs, ours)]
        found = []
        for name, entry in self._pairs([e for e in saved if e["class"] not in gone]):
            found += _unfit(self._callbacks[name], entry)
        return found

    def gone(self, saved: Sequence[Encoded]) -> set[str]:
        """The checkpoint's classes of callbacks that are gone, if they had no state."""
        ours = {_BAR, *map(_class_name, self._callbacks.values())}
        gone = {entry["class"] for entry in saved} - ours
        return gone if size(self.matched(saved)) == size(saved) else set()

    def restore(
        self,
        saved: Sequence[Encoded],
        arrays: Arrays,
        of_model: Entries | None = None,
        *,
        last: bool = True,
    ) -> None:
        """Restore every callback's state. May be repeated.

        Args:
            saved: The state of each callback.
            arrays: The larger arrays.
            of_model: That of what the model refers to.
            last: Whether everything is there that a callback makes.

        Raises:
            CheckpointMismatchError: The callbacks differ, or what a callback refers to
                (a class, a function) is gone. Then nothing was changed.
            CorruptCheckpointError: It is not what was captured; nothing was changed.
        """
        if problems := self.differences(saved):
            raise CheckpointMismatchError(
                "The callbacks of this run do not match those of the checkpoint.",
                received="\n  " + "\n  ".join(problems),
                hint="Pass the callbacks of the run that saved it, in the same order.",
            )
        pairs = self._pairs(saved)
        actions: list[Action] = []
        restore = self._plan_objects(pairs, of_model or {}, arrays)
        for name, entry in pairs:
            actions += self._plan_others(name, entry, arrays)
        lost = restore()
        for action in actions:
            action()
        for callback in self._callbacks.values():
            if type(callback) is keras.callbacks.History:
                history = getattr(callback, "history", None)
                well_formed(dict[Any, list[Any]], history, "the history")
        if lost and last:
            warn_not_exact("parts of callbacks could not be restored", lost)

    def matched(self, saved: Sequence[Encoded]) -> list[Encoded]:
        """What these get from a checkpoint with others, by class and order."""
        bars = [entry for entry in saved if entry["class"] == _BAR]
        others = [entry for entry in saved if entry["class"] != _BAR]
        ours = [c for n, c in self._callbacks.items() if not n.startswith(_BARS)]
        found = matched(others, list(map(_class_name, ours)))
        for place, (callback, entry) in enumerate(zip(ours, found, strict=True)):
            if _unfit(callback, entry):
                found[place] = {"class": entry["class"]}
        return found + bars

    def _plan_objects(
        self, pairs: Sequence[tuple[str, Encoded]], rest: Entries, arrays: Arrays
    ) -> Callable[[], list[str]]:
        entries = dict(rest)
        for _, entry in pairs:
            entries |= entry.get("objects", {})
        return plan(self._tree, entries, arrays)

    def _plan_others(self, name: str, entry: Encoded, arrays: Arrays) -> list[Action]:
        actions: list[Action] = []
        if "state_dict" in entry:
            value = decode(entry["state_dict"], arrays, self._known[name])
            actions.append(partial(self._callbacks[name].load_state_dict, value))
        if name in self._special and entry.get("special") is not None:
            actions += self._special[name].plan(entry["special"], arrays)
        return actions

    def _pairs(self, saved: Sequence[Encoded]) -> list[tuple[str, Encoded]]:
        """Which callback gets which entry; progress bars are matched separately."""
        bars = [entry for entry in saved if entry["class"] == _BAR]
        others = [entry for entry in saved if entry["class"] != _BAR]
        ours = [n for n in self._callbacks if not n.startswith(_BARS)]
        our_bars = [n for n in self._callbacks if n.startswith(_BARS)]
        pairs = list(zip(ours, others, strict=True))
        return pairs + list(zip(our_bars, bars, strict=False))

    def _own_variables(self) -> set[int]:
        """Ids of everything that is saved with the model in training."""
        models = (getattr(c, "_model", None) for c in self._callbacks.values())
        found = self._model or next(filter(keras_internals.is_trainer, models), None)
        return variables.ids(variables.leaves(found) if found else [])


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Callbacks by the prefix of their arrays' names, unaffected by progress bars."""
    bars = [each for each in callbacks if _class_name(each) == _BAR]
    others = [each for each in callbacks if _class_name(each) != _BAR]
    return {
        **{f"callbacks.{index}": each for index, each in enumerate(others)},
        **{f"{_BARS}{index}": each for index, each in enumerate(bars)},
    }


def _unfit(callback: Any, entry: Encoded) -> list[str]:
    """Why an entry of the right class still cannot be restored."""
    if entry.keys() == {"class"}:  # a new callback, which gets nothing
        return []
    name = f"callbacks: {_class_name(callback)}"
    if kinds.has_state_dict(callback) != ("state_dict" in entry):
        had = "had" if "state_dict" in entry else "had no"
        return [f"{name} {had} state_dict() and load_state_dict() when saved"]
    return []


def monitored(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The scalar logs of the end of an epoch, as floats."""
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
    """The public name, if any: private modules move between versions."""
    cls = type(callback)
    if getattr(keras.callbacks, cls.__name__, None) is cls:
        return f"keras.callbacks.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
