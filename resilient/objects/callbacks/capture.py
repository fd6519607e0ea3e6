"""Captures the state of Keras callbacks between batches, and restores it.

A callback with ``state_dict`` and ``load_state_dict`` is asked for its state. For all
others, what differs from the time before training is kept (see ``tree``), and for
callbacks that write files, how far these were written (see ``files``, ``tensorboard``).

It names callbacks whose classes or order differ from the checkpoint's (unless some are
gone that had no state), and refuses a ``state_dict()`` that does not consist of plain
values and arrays.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from resilient.errors import warn_not_exact
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
        # Progress bars come and go with ``verbose``: last, they move no other name.
        ordered = sorted(callbacks, key=lambda each: _class_name(each) == _BAR)
        self._callbacks = {f"callbacks.{n}": each for n, each in enumerate(ordered)}
        self._classes = list(map(_class_name, ordered))
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

    def capture(self, arrays: dict[str, np.ndarray]) -> tuple[list[Encoded], Entries]:
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
            if name in self._known:
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
        """Undo what earlier attempts wrote to files, when there is no checkpoint."""
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
        gone, theirs = self.gone(saved), [entry["class"] for entry in _no_bars(saved)]
        ours = [name for name in self._classes if name != _BAR]
        if [name for name in theirs if name not in gone] != ours:
            return [describe(theirs, ours)]
        odd = [e for name, e in self._pairs(saved) if not self._fits(name, e)]
        return [
            f"callbacks: {entry['class']} had {'' if 'state_dict' in entry else 'no '}"
            "state_dict() and load_state_dict() when saved"
            for entry in odd
        ]

    def gone(self, saved: Sequence[Encoded]) -> set[str]:
        """The checkpoint's classes of callbacks that are gone, if they had no state."""
        found = [entry for _, entry in self._pairs(saved) if entry]
        lost = size(_no_bars(found)) != size(_no_bars(saved))
        return {e["class"] for e in _no_bars(saved) if not lost} - {*self._classes}

    def restore(
        self,
        saved: Sequence[Encoded],
        arrays: Arrays,
        of_model: Entries | None = None,
        *,
        last: bool = True,
    ) -> None:
        """Restore the state of callbacks that match by class and order.

        May be repeated.

        Args:
            saved: The state of each callback.
            arrays: The larger arrays.
            of_model: That of what the model refers to.
            last: Whether everything is there that a callback makes.

        Raises:
            CheckpointMismatchError: What a callback refers to (a class, a function) is
                gone; nothing was changed.
            CorruptCheckpointError: It is not what was captured; nothing was changed.
        """
        entries, actions = dict(of_model or {}), list[Action]()
        for name, entry in self._pairs(saved):
            if self._fits(name, entry):
                entries |= entry.get("objects", {})
                actions += self._plan_others(name, entry, arrays)
        lost = plan(self._tree, entries, arrays)()
        for action in actions:
            action()
        for callback in self._callbacks.values():
            if type(callback) is keras.callbacks.History:
                history = getattr(callback, "history", None)
                well_formed(dict[Any, list[Any]], history, "the history")
        if lost and last:
            warn_not_exact("parts of callbacks could not be restored", lost)

    def _plan_others(self, name: str, entry: Encoded, arrays: Arrays) -> list[Action]:
        actions: list[Action] = []
        if "state_dict" in entry:
            value = decode(entry["state_dict"], arrays, self._known[name])
            actions.append(partial(self._callbacks[name].load_state_dict, value))
        if name in self._special and entry.get("special") is not None:
            actions.append(self._special[name].plan(entry["special"], arrays))
        return actions

    def _pairs(self, saved: Sequence[Encoded]) -> list[tuple[str, Encoded]]:
        """What each callback gets from a checkpoint: ``{}`` if it is new."""
        return list(zip(self._callbacks, matched(saved, self._classes), strict=True))

    def _fits(self, name: str, entry: Encoded) -> bool:
        return not entry or (name in self._known) == ("state_dict" in entry)

    def _own_variables(self) -> set[int]:
        """Ids of everything that is saved with the model in training."""
        model = self._model
        return variables.ids([] if model is None else variables.leaves(model))


def _no_bars(entries: Sequence[Encoded]) -> list[Encoded]:
    return [entry for entry in entries if entry["class"] != _BAR]


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
