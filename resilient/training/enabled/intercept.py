"""Gets control in calls of ``keras.Model.fit``, once something needs it.

That is a block of ``enabled``, or ``BackupAndRestore``. A call passes on to Keras
unless it is to be resumable: because a ``BackupAndRestore`` is among its callbacks, or
because ``enabled`` is entered.

Keras's decorator of ``fit`` calls the function that is in a cell of its closure. There
we put ours: calls through a method that was looked up before come to it as well, those
of overridden ``fit`` methods (by ``super().fit``), and those of other wrappers.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from resilient.training.enabled import calls
from resilient.training.enabled.calls import Calls
from resilient.training.fit.api import ResilientFit
from resilient.training.under_way import is_inside_a_run
from resilient.user_line import ending_at_user_line


@contextlib.contextmanager
def entered(block: Calls | None) -> Iterator[None]:
    """Inside, ``block`` makes fits resumable; None: nothing does."""
    add(block)
    try:
        yield
    finally:  # the innermost of its kind: ``disabled`` may be nested
        del calls.entered[-1 - calls.entered[::-1].index(block)]


def add(block: Calls | None) -> None:
    """The same, for as long as the process lives."""
    import wrapt

    calls.entered.append(block)
    wrapt.register_post_import_hook(take_control, "keras")


@functools.cache
def take_control(keras: Any) -> None:
    """Put our function in the place of Keras's ``fit``, for the life of the process."""
    from resilient.training.enabled.searches import ending_search

    trainer = next(cls for cls in keras.Model.__mro__[1:] if "fit" in vars(cls))
    plain = trainer.fit.__wrapped__
    cell = next(each for each in trainer.fit.__closure__ if each.cell_contents is plain)

    @functools.wraps(plain)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        found = _resumable(args, kwargs)
        if found is None:
            return plain(model, *args, **kwargs)

        def train(**options: Any) -> Any:
            here = functools.partial(plain, model)
            return ResilientFit(model, **options).fit_by(here, args, kwargs)

        with ending_at_user_line, ending_search():
            return found(model, train)

    cell.cell_contents = fit


def _resumable(args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """What makes a call of ``fit`` with these arguments; None: Keras does."""
    from resilient.training.enabled.callback import BackupAndRestore

    given = kwargs.get("callbacks", (*args, *[None] * 6)[5])
    given = getattr(given, "callbacks", given)  # of a CallbackList
    for callback in given if isinstance(given, (list, tuple)) else [given]:
        if isinstance(callback, BackupAndRestore) and not is_inside_a_run():
            return callback.run
    block = calls.current()
    return None if block is None else block.fit
