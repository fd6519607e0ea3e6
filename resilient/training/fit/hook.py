"""Gets control inside Keras's own ``fit``, for its duration and in this thread only.

Two names of the backend's trainer module are replaced (see ``keras_internals``): the
epoch iterator class, by a factory that returns ours (see ``iterators``) for the loop
that is ours, and ``callbacks_module``, by a stand-in whose ``CallbackList`` is watched.
Every other fit, evaluate and predict (nested ones, other models, other threads) gets
what Keras would give it. One name of Keras's serialization is replaced, for all: see
``keras_internals.serialization``.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import keras
from keras.utils import unpack_x_y_sample_weight

from resilient import keras_internals
from resilient.data.select import are_arrays, require_known
from resilient.errors import NotSupportedError
from resilient.keras_internals import contract, names, serialization
from resilient.keras_internals.expected import OF_SEVERAL_PROCESSES
from resilient.training.fit.attempt import FitAttempt
from resilient.training.fit.iterators import (
    Base,
    PositionedValidationIterator,
    TrainingIterator,
    ValidationIterator,
)
from resilient.training.run_state import no_garbage_collection

contract.require_known_keras()

_local = threading.local()
_lock = threading.Lock()
_installed = 0


class _AnyCallbackList(type):
    """Makes the stand-in below pass for Keras's ``CallbackList`` in ``fit``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, keras.callbacks.CallbackList)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        callbacks = keras.callbacks.CallbackList(*args, **kwargs)
        attempt = _attempt_of(sys._getframe(1))
        if attempt is not None:
            _watch(callbacks, attempt)
        return callbacks


class _CallbackList(metaclass=_AnyCallbackList):
    """Stands for Keras's ``CallbackList`` inside the trainer module."""


class _CallbacksModule:
    """Stands for Keras's module of callbacks inside the trainer module."""

    CallbackList = _CallbackList

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def require_outermost(model: Any) -> None:
    """Raise if this model's ``fit`` is a function that calls ``resilient.fit``."""
    outer: FitAttempt | None = getattr(_local, "attempt", None)
    if outer is None or outer.model is not model or outer.iterator is not None:
        return
    found = getattr(model.fit, "__func__", model.fit)
    where = f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', '?')}"
    raise NotSupportedError(
        "model.fit was replaced by a function that calls resilient.fit, which calls "
        "model.fit.",
        received=f"{type(model).__name__}.fit is {where}",
        hint="Leave model.fit as it is. `with resilient.enabled(DIR):` makes every "
        "model.fit resumable.",
    )


@contextlib.contextmanager
def hooked(attempt: FitAttempt) -> Iterator[None]:
    """Make ``attempt`` follow the next fit of its model in this thread."""
    outer = getattr(_local, "attempt", None)
    _local.attempt = attempt
    _install()
    try:
        with _told_when_trained(attempt):
            yield
    finally:
        _uninstall()
        _local.attempt = outer
        if attempt.callback_list is not None:
            _unwatch(attempt.callback_list, attempt)


@contextlib.contextmanager
def _told_when_trained(attempt: FitAttempt) -> Iterator[None]:
    """Tell ``attempt`` when an epoch's loop is over, if other processes wait.

    Then Keras asks for the logs of the epoch, before it validates.
    """
    if attempt.parallel.count == 1:
        yield
        return
    contract.require_known(OF_SEVERAL_PROCESSES)
    own, name = vars(attempt.model), keras_internals.EPOCH_LOGS
    before = own.get(name)
    plain = getattr(attempt.model, name)

    def logs_of_epoch(logs: Any) -> Any:
        if _attempt_of(sys._getframe(1)) is attempt:  # evaluate asks, too
            attempt.all_trained()
        return plain(logs)

    own[name] = logs_of_epoch
    try:
        yield
    finally:
        own.pop(name)
        if before is not None:
            own[name] = before


def _install() -> None:
    global _installed
    module: Any = keras_internals.trainer_module
    with _lock:
        if not _installed:
            setattr(module, keras_internals.EPOCH_ITERATOR, _make_iterator)
            module.callbacks_module = _CallbacksModule(module.callbacks_module)
            serialization.without_importing_tensorflow()
        _installed += 1


def _uninstall() -> None:
    global _installed
    module: Any = keras_internals.trainer_module
    with _lock:
        _installed -= 1
        if not _installed:
            setattr(module, keras_internals.EPOCH_ITERATOR, Base)
            module.callbacks_module = module.callbacks_module._module
            serialization.as_before()


def _attempt_of(frame: FrameType) -> FitAttempt | None:
    """This thread's attempt, where ``frame`` is Keras's fit of its model."""
    attempt: FitAttempt | None = getattr(_local, "attempt", None)
    if attempt is None or frame.f_code.co_name != "fit":
        return None
    return attempt if frame.f_locals.get("self") is attempt.model else None


def _make_iterator(*args: Any, **kwargs: Any) -> Any:
    """Called by Keras in place of its epoch iterator class."""
    frame = sys._getframe(1)
    attempt = _attempt_of(frame)
    if attempt is None:
        return Base(*args, **kwargs)
    if "class_weight" not in kwargs:  # only the training input has class weights
        return _validation(attempt, kwargs)
    if attempt.iterator is not None:
        raise NotSupportedError(
            "One resilient.fit can resume only one training loop.",
            received=f"{type(attempt.model).__name__}.fit reached Keras's loop twice",
            hint="Call resilient.fit once for each, each with its own checkpoint_dir.",
        )
    validation = frame.f_locals["validation_data"]
    require_known(unpack_x_y_sample_weight(validation)[0], "validation_data")
    attempt.prepare({name: frame.f_locals[name] for name in keras_internals.LOCALS})
    iterator = TrainingIterator(attempt, **kwargs)
    attempt.begin(iterator)
    callbacks = frame.f_locals["callbacks"]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        _watch(callbacks, attempt)
    return iterator


def _validation(attempt: FitAttempt, arguments: dict[str, Any]) -> Any:
    if are_arrays(arguments):
        return ValidationIterator(attempt, arguments["x"], **arguments)
    attempt.inputs.only_arrays = False
    return PositionedValidationIterator(attempt, **arguments)


_WATCHED = (
    *("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"),
    "on_train_batch_end",
)


def _watch(callbacks: Any, attempt: FitAttempt) -> None:
    """Call ``attempt`` after all callbacks."""
    plain = {name: getattr(callbacks, name) for name in _WATCHED}

    def on_train_begin(logs: Any = None) -> None:
        with no_garbage_collection():
            attempt.before_train_begin()
        names.call_in_order(callbacks)
        plain["on_train_begin"](logs)
        attempt.on_train_begin()
        callbacks.callbacks.insert(0, attempt.logs)

    def on_epoch_begin(epoch: int, logs: Any = None) -> None:
        attempt.on_epoch_begin(epoch)
        plain["on_epoch_begin"](epoch, logs)
        attempt.state.begin()

    def on_train_batch_end(batch: int, logs: Any = None) -> None:
        plain["on_train_batch_end"](batch, logs)
        attempt.on_train_batch_end(logs)

    def on_epoch_end(epoch: int, logs: Any = None) -> None:
        attempt.losses.check(all_of_them=True)  # before any callback sees the logs
        plain["on_epoch_end"](epoch, logs)
        attempt.on_epoch_end(epoch, logs)

    def on_train_end(logs: Any = None) -> None:
        plain["on_train_end"](attempt.final_logs(logs))

    attempt.logs = keras.callbacks.LambdaCallback(on_train_batch_end=attempt.logged)
    attempt.callback_list = callbacks
    for function in (on_train_begin, on_epoch_begin, on_epoch_end, on_train_end):
        setattr(callbacks, function.__name__, function)
    if attempt.losses.active:  # a call for each batch
        setattr(callbacks, on_train_batch_end.__name__, on_train_batch_end)


def _unwatch(callbacks: Any, attempt: FitAttempt) -> None:
    for name in _WATCHED:
        vars(callbacks).pop(name, None)
    if attempt.logs in callbacks.callbacks:
        callbacks.callbacks.remove(attempt.logs)
