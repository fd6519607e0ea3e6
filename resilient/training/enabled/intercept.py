"""Wraps ``keras.Model.fit``, for the life of the process.

The wrapper passes a call on to Keras, unless it is to be resumable: because
``enabled`` is entered, or because a ``BackupAndRestore`` is among the callbacks. It is
where overridden ``fit`` methods end as well, by ``super().fit``.
"""

import contextlib
import functools
from collections.abc import Iterator
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
_wrapper: Any = None  # the newest


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
    wrapt.register_post_import_hook(_wrap, "keras")
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


def take_control() -> None:
    """Wrap ``fit``, if that has not been done, or was undone by another library."""
    import keras

    _wrap(keras)


def is_in_control(model: Any) -> bool:
    """Whether a call of the model's ``fit`` comes here."""
    return type(model).fit is _wrapper


def _wrap(keras: Any) -> None:
    global _wrapper
    plain = keras.Model.fit
    if plain is _wrapper:
        return

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = functools.partial(plain, self)
        found = _resumable(plain, self, args, kwargs)
        if found is None:
            return here(*args, **kwargs)
        with ending_at_user_line, searches.ending_search():
            return found.fit(self, here, args, kwargs)

    keras.Model.fit = _wrapper = fit


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
