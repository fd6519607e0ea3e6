"""Getting control inside Keras's own ``fit``, for its duration and in this thread.

Two names of the backend's trainer module are replaced (see ``keras_internals``): the
epoch iterator class, by a factory that returns ``TrainingIterator`` for the loop that
is ours, and ``callbacks_module``, by a stand-in whose ``CallbackList`` is watched.
Every other fit, evaluate and predict (nested ones, other models, other threads) gets
what Keras would give it.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from resilient import keras_internals
from resilient.attempt import Attempt
from resilient.data import JSON
from resilient.data.select import require_array_validation, training_adapter
from resilient.errors import NotSupportedError, describe
from resilient.random_state import kept_random_state

keras_internals.require_known_keras()

_Base = keras_internals.backend_epoch_iterator()
_local = threading.local()
_lock = threading.Lock()
_installed = 0


class TrainingIterator(_Base):  # type: ignore[misc, valid-type]
    """The training input of one ``fit``; it can start at batch k.

    Keras's generator yields step numbers together with an iterator that it never
    pulls: to start at batch k is to skip its first yields and hand out an iterator
    that stands at k. The generator runs on between ``on_train_batch_end(k - 1)`` and
    ``on_train_batch_begin(k)``: there snapshots are taken and state is restored.
    """

    def __init__(self, attempt: Attempt, **arguments: Any) -> None:
        self._attempt = attempt
        self._armed = False
        self._resume: tuple[JSON, int] | None = None
        self._position: JSON | None = None
        self._begun = 0  # first batch of the training step that was last begun
        given = ("x", "y", "sample_weight", "class_weight")
        kept = {k: v for k, v in arguments.items() if k not in given}
        super().__init__(x=training_adapter(arguments), **kept)

    def reset(self) -> None:
        super().reset()
        # The first reset ends fit's symbolic build, which peeks at one batch.
        self._armed = True

    def resume_at(self, position: JSON, batch: int) -> None:
        """Make the next epoch start at ``batch``, with the input at ``position``."""
        self._resume = (position, batch)
        self.data_adapter.resume(position)

    def position(self, *, in_epoch: bool) -> JSON:
        """Where the input is: after the batches that were trained.

        Args:
            in_epoch: Between two batches; otherwise at an epoch's end.
        """
        if in_epoch:
            drawn = self._steps_seen - self.steps_per_execution
            return {"held": True, **self.data_adapter.position(drawn)}
        # With steps_per_epoch Keras holds on to the iterator in the next epoch.
        held = self.steps_per_epoch is not None and self._current_iterator is not None
        drawn = self._steps_seen if held else 0
        return {"held": held, **self.data_adapter.position(drawn)}

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""
        limit = self.steps_per_epoch or self._num_batches
        trained = int(self._begun + self.steps_per_execution)
        return min(trained, limit) if limit else trained

    def _get_iterator(self) -> Any:
        position, self._position = self._position, None
        if position is None:
            if self._armed:
                self.data_adapter.prepare()
            return super()._get_iterator()
        # The uninterrupted run made this iterator earlier: leave no trace of it now.
        with kept_random_state(self._attempt.backend):
            self.data_adapter.seek(position)
            self.data_adapter.prepare()
            return iter(super()._get_iterator())

    def _enumerate_iterator(self) -> Iterator[Any]:
        batches = super()._enumerate_iterator()
        if not self._armed:
            yield from batches
            return
        resume, self._resume = self._resume, None
        position, first = resume or ({}, 0)
        if position.get("held"):
            self._position, self._current_iterator = position, None
        for begin, end, iterator in batches:
            if begin < first:
                continue
            if resume is not None:
                if position["held"]:
                    self._steps_seen = position["drawn"] + self.steps_per_execution
                resume = None
                if first:
                    self._attempt.restore_in_epoch()
            elif begin:
                self._attempt.between_batches(begin)
            self._begun = begin
            yield begin, end, iterator


class _AnyCallbackList(type):
    """Makes the stand-in below equal to Keras's ``CallbackList`` for ``fit``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, keras_internals.CallbackList)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        callbacks = keras_internals.CallbackList(*args, **kwargs)
        attempt = _attempt_of(sys._getframe(1))
        if attempt is not None:
            _watch(callbacks, attempt)
        return callbacks


class _CallbackList(metaclass=_AnyCallbackList):
    """Stands for Keras's ``CallbackList`` inside the trainer module."""


class _CallbacksModule:
    """Stands for ``keras.src.callbacks`` inside the trainer module."""

    CallbackList = _CallbackList

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextlib.contextmanager
def hooked(attempt: Attempt) -> Iterator[None]:
    """Let ``attempt`` follow the next fit of its model in this thread."""
    outer = getattr(_local, "attempt", None)
    _local.attempt = attempt
    _install()
    try:
        yield
    finally:
        _uninstall()
        _local.attempt = outer
        if attempt.callback_list is not None:
            _unwatch(attempt.callback_list)


def _install() -> None:
    global _installed
    module: Any = keras_internals.trainer_module
    with _lock:
        if not _installed:
            setattr(module, keras_internals.EPOCH_ITERATOR, _make_iterator)
            module.callbacks_module = _CallbacksModule(module.callbacks_module)
        _installed += 1


def _uninstall() -> None:
    global _installed
    module: Any = keras_internals.trainer_module
    with _lock:
        _installed -= 1
        if not _installed:
            setattr(module, keras_internals.EPOCH_ITERATOR, _Base)
            module.callbacks_module = module.callbacks_module._module


def _attempt_of(frame: FrameType) -> Attempt | None:
    """This thread's attempt, where ``frame`` is Keras's fit of its model."""
    attempt: Attempt | None = getattr(_local, "attempt", None)
    if attempt is None or frame.f_code.co_name != "fit":
        return None
    return attempt if frame.f_locals.get("self") is attempt.model else None


def _make_iterator(*args: Any, **kwargs: Any) -> Any:
    """Called by Keras in place of its epoch iterator class."""
    frame = sys._getframe(1)
    attempt = _attempt_of(frame)
    if attempt is None:
        return _Base(*args, **kwargs)
    if "class_weight" not in kwargs:  # only the training input has class weights
        return _Base(*args, **kwargs)
    if attempt.iterator is not None:
        raise NotSupportedError(
            describe(
                "One resilient.fit follows one training loop.",
                f"{type(attempt.model).__name__}.fit reached Keras's loop twice",
                "Call resilient.fit once for each, each with its own checkpoint_dir.",
            )
        )
    iterator = TrainingIterator(attempt, **kwargs)
    local = {name: frame.f_locals[name] for name in keras_internals.LOCALS}
    require_array_validation(local.pop("validation_data"))
    attempt.begin(iterator, local)
    if isinstance(local["callbacks"], keras_internals.CallbackList):
        _watch(local["callbacks"], attempt)
    return iterator


_WATCHED = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")


def _watch(callbacks: Any, attempt: Attempt) -> None:
    """Tell ``attempt`` when all callbacks were told."""
    plain = {name: getattr(callbacks, name) for name in _WATCHED}

    def on_train_begin(logs: Any = None) -> None:
        attempt.before_train_begin()
        plain["on_train_begin"](logs)
        attempt.on_train_begin()

    def on_epoch_begin(epoch: int, logs: Any = None) -> None:
        attempt.on_epoch_begin(epoch)
        plain["on_epoch_begin"](epoch, logs)

    def on_epoch_end(epoch: int, logs: Any = None) -> None:
        plain["on_epoch_end"](epoch, logs)
        attempt.on_epoch_end(epoch, logs)

    def on_train_end(logs: Any = None) -> None:
        plain["on_train_end"](attempt.final_logs(logs))

    attempt.callback_list = callbacks
    for function in (on_train_begin, on_epoch_begin, on_epoch_end, on_train_end):
        setattr(callbacks, function.__name__, function)


def _unwatch(callbacks: Any) -> None:
    for name in _WATCHED:
        vars(callbacks).pop(name, None)
