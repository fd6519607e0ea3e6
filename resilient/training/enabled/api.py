"""``resilient.enabled`` and ``disabled``: get control in calls of ``keras.Model.fit``.

That is in a block of ``enabled``, or with ``BackupAndRestore``. A call passes on to
Keras unless it is to be resumable: because a ``BackupAndRestore`` is among its
callbacks, or because ``enabled`` is entered.

Keras's decorator of ``fit`` calls the function that is in a cell of its closure. There
we put ours: calls through a method that was looked up before come to it as well, those
of overridden ``fit`` methods (by ``super().fit``), and those of other wrappers.

Neither importing this module nor entering a block loads Keras or a backend, so a script
may still choose its backend inside.
"""

import atexit
import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any

from resilient.storage.remote.address import Address
from resilient.training.enabled import calls
from resilient.training.enabled.calls import Calls
from resilient.training.fit.api import ResilientFit
from resilient.training.options import FitOptions, Location
from resilient.training.shown import shown_as
from resilient.training.under_way import is_inside_a_run
from resilient.user_line import ending_at_user_line

# What `resilient run --save` tells the processes that it starts.
VARIABLE = "RESILIENT_SAVE"


@dataclass(frozen=True)
class OfEnabled(FitOptions):
    """What ``enabled`` takes."""

    directory: Location


@shown_as(OfEnabled)
@contextlib.contextmanager
def enabled(directory: Location, **options: Any) -> Iterator[None]:
    """Make every ``model.fit`` inside the block resumable, whoever calls it.

    Each call gets its own checkpoint directory in ``directory``, numbered in the order
    of the calls and named after the model. When the program runs again, calls that
    finished return at once, with their History, weights, optimizer and random state;
    the interrupted one continues where it was.

    The program must make its calls in the same order each time. An explicit
    ``resilient.fit`` keeps its own directory. A ``fit`` inside a callback of another
    fit, or inside a ``Run`` loop, belongs to that one and is not changed.

    Args:
        directory: Created if missing; or an address, like ``checkpoint_dir`` of
            ``fit``.
        **options: Options of ``resilient.fit`` for each call, except
            ``checkpoint_dir`` and ``resume``.

    Raises:
        TypeError: An option is unknown, or has the wrong type.
        ValueError: An option has an invalid value.
        CheckpointMismatchError: A call is not what it was before, or the block ends
            without one that had been interrupted.
    """
    with ending_at_user_line:
        block = Calls(directory, options)
    with contextlib.closing(block), _entered(block):
        yield
        with ending_at_user_line:
            block.require_all_made()
    calls.ended.add(block.directory)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Exclude the calls of ``model.fit`` inside from ``enabled`` and its numbering."""
    with _entered(None):
        yield


def environment(directory: Location, options: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables that enable every fit of a process and of those it starts.

    Args:
        directory: As for ``enabled``.
        options: Numbers and strings.
    """
    Calls(directory, options)  # refuse bad options now, while somebody is watching
    startup = os.path.join(os.path.dirname(__file__), "startup")
    paths = [startup, os.environ.get("PYTHONPATH")]
    where = Address.of(directory) or os.path.abspath(directory)
    said = {"directory": str(where), **options}
    return {
        VARIABLE: json.dumps(said),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def enable_from_environment() -> None:
    """``enabled`` as the environment says, until the process ends."""
    options = json.loads(os.environ[VARIABLE])
    block = Calls(options.pop("directory"), options)
    if (parent := parent_process()) is not None:
        block.process = parent.pid or 0
    atexit.register(block.settle)
    _add(block)


@contextlib.contextmanager
def _entered(block: Calls | None) -> Iterator[None]:
    """Inside, ``block`` makes fits resumable; None: nothing does."""
    _add(block)
    try:
        yield
    finally:  # the innermost of its kind: ``disabled`` may be nested
        del calls.entered[-1 - calls.entered[::-1].index(block)]


def _add(block: Calls | None) -> None:
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
