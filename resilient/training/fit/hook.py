"""Gets control inside Keras's own ``fit``, for its duration and in this thread only.

Two names of the backend's trainer module are replaced (see ``keras_internals``): the
epoch iterator class, by a factory that returns ours (see ``iterators``) for the loop
that is ours, and ``callbacks_module``, by a stand-in whose ``CallbackList`` is watched.
Every other fit, evaluate and predict (nested ones, other models, other threads) gets
what Keras would give it. One name of Keras's serialization is replaced, for all: see
``names.without_importing_tensorflow``.
"""

import contextlib
import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any, Self

import keras
from keras.utils import unpack_x_y_sample_weight

from resilient import keras_internals
from resilient.data.select import are_arrays, require_known
from resilient.errors import NotSupportedError, require_integer
from resilient.keras_internals import contract, names
from resilient.keras_internals.expected import OF_SEVERAL_PROCESSES
from resilient.training.fit.attempt import FitAttempt, FitPlan
from resilient.training.fit.iterators import (
    Base,
    PositionedValidationIterator,
    TrainingIterator,
    ValidationIterator,
)
from resilient.training.state import no_garbage_collection

contract.require_known_keras()

_local = threading.local()
_lock = threading.Lock()
_followed = 0  # fits


class Hook(contextlib.ExitStack):
    """Follows the next fit of a model in this thread, until it is left.

    Args:
        plan: The fit.

    Attributes:
        iterator: The training input, once Keras creates it.
        attempt: The attempt, once training begins.
    """

    def __init__(self, plan: FitPlan) -> None:
        super().__init__()
        self.plan = plan
        self.iterator: TrainingIterator | None = None
        self.attempt: FitAttempt | None = None

    def __enter__(self) -> Self:
        """Follow from here on."""
        if self.plan.session.parallel.count > 1:
            self._follow_logs()
        self.callback(setattr, _local, "hook", getattr(_local, "hook", None))
        _local.hook = self
        _count(1)
        self.callback(_count, -1)
        return self

    def _follow_logs(self) -> None:
        """Notice when an epoch's loop is over, which other processes wait for.

        Then Keras asks for the logs of the epoch, before it validates.
        """
        contract.require_known(OF_SEVERAL_PROCESSES)
        model, name = self.plan.model, keras_internals.EPOCH_LOGS
        plain = getattr(model, name)

        def logs_of_epoch(logs: Any) -> Any:
            here = _hook_of(sys._getframe(1)) is self  # evaluate asks, too
            if here and self.attempt is not None:
                self.attempt.all_trained()
            return plain(logs)

        self.replace(vars(model), name, logs_of_epoch)

    def replace(self, attributes: dict[str, Any], name: str, value: Any) -> None:
        """Set an attribute of an object until the fit has ended."""
        if name in attributes:
            self.callback(attributes.__setitem__, name, attributes[name])
        else:
            self.callback(attributes.pop, name, None)
        attributes[name] = value

    def make_iterator(self, frame: FrameType, given: dict[str, Any]) -> Any:
        """Called by Keras in place of its epoch iterator class."""
        # Validation comes later; only the training input has class weights.
        if self.attempt is not None and "class_weight" not in given:
            if are_arrays(given):
                return ValidationIterator(self.attempt, given["x"], **given)
            self.attempt.iterator.inputs.only_arrays = False
            return PositionedValidationIterator(self.attempt, **given)
        if self.iterator is not None:
            raise NotSupportedError(
                "One resilient.fit can resume only one training loop.",
                received=f"{type(self.plan.model).__name__}.fit reached Keras's loop "
                "twice",
                hint="Call resilient.fit once for each, each with its own "
                "checkpoint_dir.",
            )
        values, session = frame.f_locals, self.plan.session
        validation = unpack_x_y_sample_weight(values["validation_data"])[0]
        require_known(validation, "validation_data")
        arguments = {name: values[name] for name in keras_internals.LOCALS}
        require_integer(arguments["initial_epoch"], "`initial_epoch`", least=0)
        session.say.set_verbose(arguments["verbose"])
        found = self.plan.found
        positions = None if found is None else found[1].positions()
        inputs = session.inputs(arguments, positions)
        iterator = self.iterator = TrainingIterator(session, inputs, given)
        self.callback(iterator.let_go)
        inputs.begin(iterator)
        if isinstance(callbacks := values["callbacks"], keras.callbacks.CallbackList):
            self.follow(callbacks, iterator)
        return iterator

    def follow(self, callbacks: Any, iterator: TrainingIterator) -> None:
        """Call the attempt after all callbacks of this list."""
        plain = callbacks.on_train_begin

        def on_train_begin(logs: Any = None) -> None:
            attempt = self._begin(callbacks, iterator)
            names.call_in_order(callbacks)
            plain(logs)
            attempt.begin()
            ours = keras.callbacks.LambdaCallback(on_train_batch_end=attempt.logged)
            called = callbacks.callbacks
            called.insert(0, ours)
            self.callback(lambda: ours in called and called.remove(ours))

        self.replace(vars(callbacks), "on_train_begin", on_train_begin)

    @no_garbage_collection()
    def _begin(self, callbacks: Any, iterator: TrainingIterator) -> FitAttempt:
        attempt = FitAttempt(self.plan, iterator, callbacks)
        self.attempt = iterator.attempt = attempt
        began, ended = callbacks.on_epoch_begin, callbacks.on_epoch_end
        trained, over = callbacks.on_train_batch_end, callbacks.on_train_end

        def on_epoch_begin(epoch: int, logs: Any = None) -> None:
            attempt.on_epoch_begin(epoch)
            began(epoch, logs)
            attempt.state.begin_epoch()

        def on_train_batch_end(batch: int, logs: Any = None) -> None:
            trained(batch, logs)
            attempt.on_train_batch_end(logs)

        def on_epoch_end(epoch: int, logs: Any = None) -> None:
            attempt.losses.check(all_of_them=True)  # before any callback sees the logs
            ended(epoch, logs)
            attempt.on_epoch_end(epoch, logs)

        def on_train_end(logs: Any = None) -> None:
            over(logs or attempt.state.logs)  # in a finished run, what it got then

        own = vars(callbacks)
        for function in (on_epoch_begin, on_epoch_end, on_train_end):
            self.replace(own, function.__name__, function)
        if attempt.losses.active:  # a call for each batch
            self.replace(own, on_train_batch_end.__name__, on_train_batch_end)
        return attempt


class _AnyCallbackList(type):
    """Makes the stand-in below pass for Keras's ``CallbackList`` in ``fit``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, keras.callbacks.CallbackList)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        callbacks = keras.callbacks.CallbackList(*args, **kwargs)
        hook = _hook_of(sys._getframe(1))
        if hook is not None and hook.iterator is not None:
            hook.follow(callbacks, hook.iterator)
        return callbacks


class _CallbackList(metaclass=_AnyCallbackList):
    """Stands for Keras's ``CallbackList`` inside the trainer module."""


_CALLBACKS: Any = keras_internals.trainer_module.callbacks_module
_STAND_IN = SimpleNamespace(**vars(_CALLBACKS) | {"CallbackList": _CallbackList})


def require_outermost(model: Any) -> None:
    """Raise if this model's ``fit`` is a function that calls ``resilient.fit``."""
    outer: Hook | None = getattr(_local, "hook", None)
    if outer is None or outer.plan.model is not model or outer.iterator is not None:
        return
    raise NotSupportedError(
        "model.fit was replaced by a function that calls resilient.fit, which calls "
        "model.fit.",
        received=f"{type(model).__name__}.fit is {model.fit}",
        hint="Leave model.fit as it is. `with resilient.enabled(DIR):` makes every "
        "model.fit resumable.",
    )


def _count(fits: int) -> None:
    """Note that so many more fits are followed; Keras's names are replaced for any."""
    global _followed
    module: Any = keras_internals.trainer_module
    with _lock:
        before, _followed = _followed, _followed + fits
        if not before:
            setattr(module, keras_internals.EPOCH_ITERATOR, _make_iterator)
            module.callbacks_module = _STAND_IN
            names.without_importing_tensorflow()
        elif not _followed:
            setattr(module, keras_internals.EPOCH_ITERATOR, Base)
            module.callbacks_module = _CALLBACKS
            names.as_before()


def _hook_of(frame: FrameType) -> Hook | None:
    """This thread's hook, where ``frame`` is Keras's fit of its model."""
    hook: Hook | None = getattr(_local, "hook", None)
    if hook is None or frame.f_code.co_name != "fit":
        return None
    return hook if frame.f_locals.get("self") is hook.plan.model else None


def _make_iterator(*args: Any, **kwargs: Any) -> Any:
    frame = sys._getframe(1)
    hook = _hook_of(frame)
    return Base(*args, **kwargs) if hook is None else hook.make_iterator(frame, kwargs)
