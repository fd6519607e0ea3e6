"""Lets Keras's ``fit`` draw its batches, in order, without training on them."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from resilient import keras_internals
from resilient.progress import Progress
from resilient.storage.files import say_once
from resilient.training import trial

if TYPE_CHECKING:
    from resilient.training.fit.attempt import FitAttempt

_FUNCTION = "train_function"
_MAKE = "make_train_function"
_VALIDATION = "validation_freq"
_EPOCHS_AT = 3  # among the positional arguments of Keras's fit


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
    signature = inspect.signature(fit)
    given = signature.bind_partial(*args, **kwargs)
    here = given.arguments
    rest: dict[str, Any] = {}  # what a fit of one's own takes as **kwargs
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            rest = here.setdefault(name, {})
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            _say_if_hidden(asked, fit, here.get(name, ()))
    for name, value in _changed(asked, here | rest).items():
        if name in signature.parameters:
            here[name] = value
        elif name in rest or name == _VALIDATION:
            rest[name] = value
    return given.args, given.kwargs


def _changed(asked: trial.Trial, given: Mapping[str, Any]) -> dict[str, Any]:
    epochs, initial = given.get("epochs", 1), given.get("initial_epoch", 0)
    changed: dict[str, Any] = {"epochs": trial.fewer_epochs(epochs, initial)}
    if asked.data_only:  # validation and callbacks look at what is trained
        changed |= {"callbacks": None, _VALIDATION: sys.maxsize}
    return changed


def _say_if_hidden(asked: trial.Trial, fit: Any, values: tuple[Any, ...]) -> None:
    """Log that epochs stay as they are, where they may be among positional values."""
    if asked.epochs is not None and len(values) > _EPOCHS_AT:
        name = f"{getattr(fit, '__qualname__', 'fit')}{inspect.signature(fit)}"
        say_once(f"The epochs of {name} are not shortened: pass them by name.", of=name)


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
