"""Captures the state of Keras callbacks between batches, and restores it.

A callback with ``state_dict`` and ``load_state_dict`` is asked for its state. For all
others, what differs from the time before training is kept (see ``tree``), and for
callbacks that write files, how far these were written (see ``files``, ``tensorboard``).

It names callbacks whose classes or order differ from the checkpoint's (unless some are
gone that had no state), and refuses a ``state_dict()`` that does not consist of plain
values and arrays.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from resilient.errors import warn_not_exact
from resilient.keras_internals import BACKEND
from resilient.objects import kinds
from resilient.objects.adapters.keras_objects import parts_of
from resilient.objects.callbacks.files import CsvFile, ModelFile, OrbaxSteps
from resilient.objects.callbacks.special import ProgressBar, Special
from resilient.objects.callbacks.tensorboard import EventFiles
from resilient.objects.changes import changes, settle
from resilient.objects.restore import plan
from resilient.objects.training_setup import is_eager
from resilient.objects.tree import Scope, Tree, is_below
from resilient.serialization import Encoded, Entries
from resilient.serialization.json_values import decode, encode
from resilient.serialization.schema import taking
from resilient.serialization.state_dict import encoded_state, known_in
from resilient.state import variables
from resilient.state.build import has_keras_step

_UNSAFE = re.compile(r"\W", re.ASCII)
Action = Callable[[], object]
# Keras derives from what these are given, once an epoch has ended, what then is state.
_MONITORS = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)
_BAR = "keras.callbacks.ProgbarLogger"
_NO_STATES: tuple[Encoded, ...] = (None, {}, encode({}, {}, "state"))
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
            ``host``, ``pid`` and start time (``started``, in seconds).
        since: The state of an earlier ``fit`` in this process that is being undone:
            what these callbacks were then counts as their beginning.
        apart: Objects that are saved elsewhere.

    Attributes:
        tree: Everything that the callbacks and the model refer to.
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
        self._model, self._attempts = model, attempts
        self._traced = model is not None and not is_eager(model)
        self._special = {
            name: cls(callback, attempts)
            for name, callback in self._callbacks.items()
            for keras_name, cls in _SPECIAL.items()
            if isinstance(callback, getattr(keras.callbacks, keras_name, ()))
        }
        asked = {
            n: c for n, c in self._callbacks.items() if kinds.has_state_dict(type(c))
        }
        self._known = {n: known_in(c.state_dict) for n, c in asked.items()}
        self._kinds = {n: _kind(c, n in asked) for n, c in self._callbacks.items()}
        self.tree: Tree = Tree(
            {n: c for n, c in self._callbacks.items() if n not in asked},
            {} if model is None else dict(parts_of(model)),
            Scope(
                own=self._own_variables,
                hidden={n: each.skipped for n, each in self._special.items()},
                traced=self._traced,
            ),
            since=since.tree if since is not None else None,
            apart=[*asked.values(), *apart],
        )

    def learn(self) -> None:
        """Every callback has seen ``on_train_begin``, or ``on_epoch_begin``."""
        self.tree.learn()

    def capture(self, arrays: dict[str, np.ndarray]) -> tuple[list[Encoded], Entries]:
        """The current state of every callback, and of what the model refers to.

        Args:
            arrays: Receives the larger arrays, not copied, under names that begin
                with the names of callbacks and layers.

        Raises:
            NotSupportedError: A ``state_dict()`` cannot be kept as JSON and arrays.
        """
        changed = changes(self.tree, arrays)
        captured = []
        for name, callback in self._callbacks.items():
            entry: Encoded = {"name": name, "kind": self._kinds[name]}
            entry["class"] = _class_name(callback)
            if name in self._known:
                state, whose = callback.state_dict(), type(callback).__qualname__
                entry["state_dict"] = encoded_state(
                    state, arrays, name, whose, self._known[name]
                )
            else:
                mine = [home for home in changed if is_below(home, name)]
                entry["objects"] = {home: changed.pop(home) for home in mine}
            special = self._special[name].state() if name in self._special else None
            if special is not None:
                entry["special"] = encode(special, arrays, f"{name}.special")
            captured.append(entry)
        return captured, changed

    def begin_steps(self) -> None:
        """Every callback has seen the first ``on_epoch_begin``."""
        self.learn()
        self.tree.begin_steps()

    def settle(self) -> None:
        """The first step was done: learn what it made, and what tracing it changed."""
        self.tree.learn(by_step=True)
        settle(self.tree)

    def undo(self) -> None:
        """Undo what training did to what the model refers to."""
        plan(self.tree, {}, {}, only_step=True)()

    def begin_anew(self) -> None:
        """Undo what earlier attempts wrote to files, when there is no checkpoint."""
        if self._attempts:
            began = min(float(each["started"]) for each in self._attempts)
            for extra in self._special.values():
                extra.begin_anew(began)

    def uncaptured(self) -> list[str]:
        """Attributes that no capture holds, as ``"MyCallback.attribute (type)"``."""
        return list(self.tree.lost)

    def differences(self, saved: Sequence[Encoded]) -> list[str]:
        """How the checkpoint's callbacks differ from these; empty if they do not.

        ``ProgbarLogger`` does not count: ``verbose`` adds or removes it. Nor do those
        that are ``gone``.
        """
        but = {_BAR, *self.gone(saved)}
        was = [entry["kind"] for entry in saved if entry["class"] not in but]
        now = [kind for kind in self._kinds.values() if kind != _BAR]
        if was == now:
            return []
        changes = {
            "removed": Counter(was) - Counter(now),
            "added": Counter(now) - Counter(was),
        }
        found = [f"{', '.join(each)} {how}" for how, each in changes.items() if each]
        order = f"the checkpoint has them in a different order ({', '.join(was)})"
        return [f"callbacks: {'; '.join(found) or order}"]

    def gone(self, saved: Sequence[Encoded]) -> set[str]:
        """The checkpoint's classes of callbacks that are gone, if they had no state."""
        known = {_BAR, *map(_class_name, self._callbacks.values())}
        gone = [entry for entry in saved if entry["class"] not in known]
        rest = json.dumps([entry for entry in saved if entry["class"] in known])
        for entry in gone:
            states = [entry.get(name) for name in ("objects", "state_dict", "special")]
            if any(x not in _NO_STATES for x in states) or f'"{entry["name"]}' in rest:
                return set()
        return {entry["class"] for entry in gone}

    def restore(
        self,
        saved: Sequence[Encoded],
        arrays: Mapping[str, np.ndarray],
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
        entries = dict(of_model or {})
        actions, specials = list[Action](), list[Action]()
        for entry in saved:
            name = entry["name"]
            if self._kinds.get(name) != entry["kind"]:
                continue
            entries |= entry.get("objects", {})
            if "state_dict" in entry:
                value = decode(entry["state_dict"], arrays, self._known[name])
                actions.append(partial(self._callbacks[name].load_state_dict, value))
            if "special" in entry:
                special = decode(entry["special"], arrays)
                specials.append(partial(self._special[name].restore, special))
        lost = plan(self.tree, entries, arrays)()
        for action in actions:
            action()
        with taking("what a callback keeps beside its attributes"):
            for action in specials:
                action()
        if lost and last:
            warn_not_exact("parts of callbacks could not be restored", lost)

    def _own_variables(self) -> set[int]:
        """Ids of everything that is saved with the model in training.

        Not variables that Keras's step on JAX does not get, and bakes in.
        """
        found = [] if self._model is None else variables.leaves(self._model)
        if BACKEND == "jax" and self._traced and has_keras_step(self._model):
            found = [leaf for leaf in found if leaf.slot[0] != "extra"]
        return variables.ids(found)


def _named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Callbacks by class and number, so that others may come and go between them."""
    found, count = {}, Counter[str]()
    for callback in callbacks:
        name = _UNSAFE.sub("_", type(callback).__name__)
        count[name] += 1
        found[f"callbacks.{name}.{count[name]}"] = callback
    return found


def monitored(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The scalar logs of the end of an epoch, as floats."""
    found = {}
    for name, value in (logs or {}).items():
        with contextlib.suppress(Exception):  # whatever a user's metric put there
            found[str(name)] = float(np.asarray(value).item())
    return found


def _kind(callback: Any, is_asked: bool) -> str:
    """The class of a callback, and what decides what its state means."""
    given = ""
    if isinstance(callback, _MONITORS):
        given = f" of {callback.monitor!r}, mode {getattr(callback, 'mode', 'auto')!r}"
        given += f", min_delta {abs(getattr(callback, 'min_delta', 0))!r}"
    return _class_name(callback) + given + " with state_dict()" * is_asked


def _class_name(callback: Any) -> str:
    """The public name, if any: private modules move between versions."""
    cls = type(callback)
    if getattr(keras.callbacks, cls.__name__, None) is cls:
        return f"keras.callbacks.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
