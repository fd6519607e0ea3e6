"""Captures the state of Keras callbacks between batches, and restores it.

A callback with ``state_dict`` and ``load_state_dict`` is asked for its state. For all
others, changes since training began are kept (see ``tracker``), and for callbacks that
write files, how far these were written (see ``files`` and ``tensorboard``).

It refuses callbacks whose classes or order differ from the checkpoint's (unless some
are gone that had no state), and a ``state_dict()`` that does not consist of plain
values and arrays. The state of closures and lambdas cannot be seen and is not captured.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from resilient.objects.callbacks.files import special
from resilient.objects.callbacks.matching import describe, matched, size
from resilient.objects.callbacks.special import Action, Arrays
from resilient.objects.content import Scope
from resilient.objects.tracker import Tracker
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.schema import well_formed
from resilient.serialization.state_dict import encoded_state, known_in
from resilient.state import variables

_BAR = "keras.callbacks.ProgbarLogger"
_BARS = "callbacks.bar"  # prefix of their names
_PREFIX = re.compile(r"callbacks\.[^.:[]+")  # a callback's name, before its paths


class CallbackStates:
    """The state of all callbacks of one ``fit``.

    Create it right after every callback's ``on_train_begin``: later changes are state,
    what is there already is configuration.

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
        *,
        attempts: Sequence[Mapping[str, Any]] = (),
        since: "CallbackStates | None" = None,
    ) -> None:
        self._callbacks = _named(callbacks)
        self._own: set[int] | None = None
        found = {n: special(c, attempts) for n, c in self._callbacks.items()}
        self._special = {n: extra for n, extra in found.items() if extra is not None}
        self._known = {
            name: known_in(callback.state_dict)
            for name, callback in self._callbacks.items()
            if kinds.has_state_dict(callback)
        }
        hidden = {name: extra.skipped for name, extra in self._special.items()}
        self._tracker: Tracker = Tracker(
            self._callbacks,
            Scope(whole=True, own=self._own_variables, hidden=hidden),
            since._tracker if since is not None else None,
        )

    def capture(self, arrays: dict[str, np.ndarray]) -> list[Encoded]:
        """The current state of every callback.

        Args:
            arrays: Receives the larger arrays, not copied, under names that begin
                with ``callbacks.``.

        Raises:
            NotSupportedError: A ``state_dict()`` cannot be kept as JSON and arrays.
        """
        self._own = None
        changed = self._tracker.capture()
        arrays.update(changed.get("arrays", {}))
        by_callback = _by_callback(self._callbacks, changed)
        captured = []
        for name, callback in self._callbacks.items():
            entry: dict[str, Encoded] = {"class": _class_name(callback)}
            if kinds.has_state_dict(callback):
                state, whose = callback.state_dict(), type(callback).__qualname__
                entry["state_dict"] = encoded_state(
                    state, arrays, name, whose, self._known[name]
                )
            else:
                entry |= by_callback[name]
            if name in self._special:
                special = self._special[name].capture(arrays, f"{name}.special")
                entry["special"] = special
            captured.append(entry)
        return captured

    def begin_anew(self) -> None:
        """Undo what earlier attempts left in files, when there is no checkpoint."""
        for extra in self._special.values():
            extra.begin_anew()

    def uncaptured(self) -> list[str]:
        """Attributes that no capture holds, as ``"MyCallback.attribute (type)"``."""
        return self._tracker.uncaptured()

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

    def restore(self, saved: Sequence[Encoded], arrays: Arrays) -> None:
        """Restore every callback's state. May be repeated.

        Raises:
            CheckpointMismatchError: The callbacks differ, or what a callback refers to
                (a class, a function) is gone. Then nothing was changed.
            CorruptCheckpointError: It is not what was captured; nothing was changed.
        """
        self._own = None
        if problems := self.differences(saved):
            raise CheckpointMismatchError(
                "The callbacks of this run do not match those of the checkpoint.",
                received="\n  " + "\n  ".join(problems),
                hint="Pass the callbacks of the run that saved it, in the same order.",
            )
        pairs = self._pairs(saved)
        actions: list[Action] = []
        put_back = self._plan_attributes(pairs, arrays)
        for name, entry in pairs:
            actions += self._plan_others(name, entry, arrays)
        lost = put_back()
        for action in actions:
            action()
        for callback in self._callbacks.values():
            if type(callback) is keras.callbacks.History:
                history = getattr(callback, "history", None)
                well_formed(dict[Any, list[Any]], history, "the history")
        if lost:
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

    def _plan_attributes(
        self, pairs: Sequence[tuple[str, Encoded]], arrays: Arrays
    ) -> Callable[[], list[str]]:
        state: dict[str, Any] = {"changes": {}, "orders": {}, "deleted": []}
        for _, entry in pairs:
            state["changes"] |= entry.get("changes", {})
            state["orders"] |= entry.get("orders", {})
            state["deleted"] += entry.get("deleted", ())
        return self._tracker.plan(state, arrays)

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
        if self._own is None:
            models = (getattr(c, "_model", None) for c in self._callbacks.values())
            model = next(filter(keras_internals.is_trainer, models), None)
            leaves = [] if model is None else variables.leaves(model)
            self._own = {id(leaf.target) for leaf in leaves}
        return self._own


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Callbacks by the prefix of their arrays' names, unaffected by progress bars."""
    bars = [each for each in callbacks if _class_name(each) == _BAR]
    others = [each for each in callbacks if _class_name(each) != _BAR]
    return {
        **{f"callbacks.{index}": each for index, each in enumerate(others)},
        **{f"{_BARS}{index}": each for index, each in enumerate(bars)},
    }


def _by_callback(
    names: Iterable[str], changed: Mapping[str, Any]
) -> dict[str, dict[str, Encoded]]:
    """What has changed on each callback."""
    found: dict[str, dict[str, Any]] = {
        name: {"changes": {}, "orders": {}, "deleted": []} for name in names
    }
    for key in ("changes", "orders"):
        for path, change in changed.get(key, {}).items():
            if of := _PREFIX.match(path):
                found[of[0]][key][path] = change
    for path in changed.get("deleted", ()):
        if of := _PREFIX.match(path):
            found[of[0]]["deleted"].append(path)
    return found


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
