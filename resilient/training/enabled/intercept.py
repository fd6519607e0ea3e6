"""Gets control in calls of ``keras.Model.fit``, for as long as something needs it.

That is a block of ``enabled``, or a living ``BackupAndRestore``. A call passes on to
Keras unless it is to be resumable: because a ``BackupAndRestore`` is among its
callbacks, or because ``enabled`` is entered.

Keras's decorator of ``fit`` calls the function that is in a cell of its closure. There
we put ours: calls through a method that was looked up before come to it as well, those
of overridden ``fit`` methods (by ``super().fit``), and those of other wrappers.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from resilient.training.enabled import searches
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

    from resilient.training.enabled.calls import Calls
    from resilient.training.enabled.journal import Journal


class Fit(Protocol):
    """Keras's ``fit`` of one model."""

    def __call__(self, *args: Any, **kwargs: Any) -> "keras.callbacks.History": ...


class Resumable(Protocol):
    """What makes calls of ``fit`` resumable."""

    def fit(
        self,
        model: "keras.Model",
        plain: Fit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "keras.callbacks.History":
        """Run Keras's ``fit`` of a model so that it can be resumed."""


# The innermost is the last; None stands for ``disabled``.
_entered: "list[Calls | None]" = []
_held: "list[InControl]" = []  # while a block is entered, once Keras is there
_living: "weakref.WeakValueDictionary[Any, InControl]" = weakref.WeakValueDictionary()


@contextlib.contextmanager
def entered(calls: "Calls | None") -> Iterator[None]:
    """Inside, ``calls`` makes fits resumable; None: nothing does."""
    add(calls)
    try:
        yield
    finally:
        _leave(calls)


def add(calls: "Calls | None") -> None:
    """The same, for as long as the process lives."""
    import wrapt

    _entered.append(calls)
    wrapt.register_post_import_hook(_hold, "keras")
    wrapt.register_post_import_hook(wrap_searches, "keras_tuner")


def wrap_searches(keras_tuner: Any) -> None:
    """KerasTuner was imported."""
    searches.wrap(keras_tuner, _journal)


def _journal() -> "Journal | None":
    from resilient.training.under_way import is_inside_a_run

    calls = _entered[-1] if _entered else None
    if calls is None or calls.is_of_parent() or is_inside_a_run():
        return None
    return calls.opened()


def _leave(calls: "Calls | None") -> None:
    """Take out the innermost of its kind: ``disabled`` may be nested."""
    last = len(_entered) - 1 - _entered[::-1].index(calls)
    del _entered[last]
    if not _entered:
        _held.clear()


def _hold(_: Any) -> None:
    """Keras was imported."""
    if _entered and not _held:
        _held.append(in_control())


def in_control() -> "InControl":
    """Control in calls of ``fit``, for as long as somebody keeps what is returned."""
    import keras

    model = keras.Model
    return _living.get(model) or _living.setdefault(model, InControl(model))


class InControl:
    """Keeps our function in the place of Keras's while it lives.

    Where Keras's ``fit`` is not decorated, ours is an attribute of the class. A copy,
    also in another process, is what is in control there.

    Args:
        model: The class.
    """

    def __init__(self, model: Any) -> None:
        owner, name = _place(model)
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def fit(net: Any, *args: Any, **kwargs: Any) -> Any:
            here = functools.partial(plain, net)
            found = _resumable(plain, net, args, kwargs)
            if found is None:
                return here(*args, **kwargs)
            with ending_at_user_line, searches.ending_search():
                return found.fit(net, here, args, kwargs)

        setattr(owner, name, fit)
        weakref.finalize(self, _give_up, owner, name, plain, fit).atexit = False

    def __reduce__(self) -> "tuple[Callable[[], InControl], tuple[()]]":
        return in_control, ()


def _give_up(owner: Any, name: str, plain: Any, ours: Any) -> None:
    if getattr(owner, name) is ours:  # nobody has wrapped it since
        setattr(owner, name, plain)


def _place(model: Any) -> tuple[Any, str]:
    """Owner and name of what ``fit`` calls: a cell of Keras's decorator, or ``fit``."""
    classes = [cls for cls in model.__mro__ if "fit" in vars(cls)]
    for fit in (vars(cls)["fit"] for cls in classes):
        if getattr(fit, "__globals__", {}).get("__name__", "").startswith("keras."):
            for cell in fit.__closure__ or ():
                if cell.cell_contents is getattr(fit, "__wrapped__", None):
                    return cell, "cell_contents"
    return classes[0], "fit"


def _resumable(
    plain: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Resumable | None:
    from resilient.training.enabled.callback import BackupAndRestore, callbacks_of
    from resilient.training.under_way import is_inside_a_run

    if is_inside_a_run():
        return None
    for callback in callbacks_of(plain, model, args, kwargs):
        if isinstance(callback, BackupAndRestore):
            return callback.control
    return _entered[-1] if _entered else None
