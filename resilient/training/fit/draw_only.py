"""Lets Keras's ``fit`` draw its batches, in order, without training on them."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from resilient import keras_internals
from resilient.progress import Progress
from resilient.training import trial

if TYPE_CHECKING:
    from resilient.training.fit.attempt import FitAttempt

_FUNCTION = "train_function"
_MAKE = "make_train_function"


def shortened(
    fit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a fit, changed as ``resilient prove`` asks.

    Args:
        fit: The model's own ``fit``.
        args: Positional arguments of the script.
        kwargs: Keyword arguments of the script.
    """
    asked = trial.current()
    if asked is None:
        return args, kwargs
    given = inspect.signature(fit).bind_partial(*args, **kwargs)
    default = given.arguments
    epochs, initial = default.get("epochs", 1), default.get("initial_epoch", 0)
    changed: dict[str, Any] = {"epochs": trial.fewer_epochs(epochs, initial)}
    if asked.data_only:  # validation and callbacks look at what is trained
        changed |= {"callbacks": None, "validation_freq": sys.maxsize}
    known = inspect.signature(fit).parameters
    default.update({name: value for name, value in changed.items() if name in known})
    return given.args, given.kwargs


@contextlib.contextmanager
def drawing_only(attempt: "FitAttempt") -> Iterator[None]:
    """Inside, a training step only draws its batches and records their digests."""
    if not trial.draws_only():
        yield
        return
    own = vars(attempt.model)
    before = {name: own[name] for name in (_FUNCTION, _MAKE) if name in own}

    def draw(*given: Any) -> Any:
        # On torch they were drawn already.
        batches, progress = iter(given[-1]), attempt.progress
        steps = attempt.model.steps_per_execution
        draws = keras_internals.generation.draws_in_step(steps)
        for number in range(1, draws + 1):
            step, epoch, batch = progress
            at = Progress(step + number, epoch, batch + number)
            try:
                drawn = next(batches)
            except StopIteration:
                if number == 1:
                    raise
                break
            attempt.session.digests.add_batch(at, drawn)
        return ({}, given[0]) if len(given) > 1 else {}

    own[_FUNCTION], own[_MAKE] = draw, lambda force=False: draw
    try:
        yield
    finally:
        for name in (_FUNCTION, _MAKE):
            own.pop(name)
        own.update(before)
