"""The parameters of ``fit`` and ``ResilientFit``, as dataclasses that declare them.

Keras's own are spelled out. A call passes on only what its caller gave: a model's own
``fit`` may have other defaults and fewer or more parameters, and those it adds are
passed on too. So nothing makes these classes.

Arguments that nobody takes are refused before anything is done: Keras would do so only
after the directory is locked, and without mentioning our arguments.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from resilient.errors import message
from resilient.training.options import FitOptions, InDirectory

if TYPE_CHECKING:
    import keras
    from keras.callbacks import Callback, CallbackList

# Parameters of `fit` that are ours.
OPTIONS = frozenset(each.name for each in (*fields(InDirectory), *fields(FitOptions)))


@dataclass(frozen=True)
class OfModel:
    """The model to train."""

    model: "keras.Model"


@dataclass(frozen=True)
class KerasArguments:
    """What Keras's ``Model.fit`` takes."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: int | Literal["auto"] = "auto"
    callbacks: "Sequence[Callback] | CallbackList | None" = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool | Literal["batch"] = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1


@dataclass(frozen=True)
class OfResilientFit(OfModel, FitOptions, InDirectory):
    """What ``ResilientFit`` takes."""


@dataclass(frozen=True)
class OfFit(KerasArguments, OfResilientFit):
    """What ``fit`` takes."""


def require_known(
    fit: Callable[..., Any], given: Mapping[str, Any], ours: Collection[str]
) -> None:
    """Raise TypeError for an unknown keyword argument.

    Args:
        fit: The model's ``fit``, perhaps overridden by the user: its signature counts.
        given: The keyword arguments of the call.
        ours: Names of the arguments that ``resilient.fit`` adds.
    """
    try:
        parameters = inspect.signature(fit).parameters
    except (TypeError, ValueError):  # no signature: the callee will refuse it
        return
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in given:
        if name in parameters:
            continue
        hint = "Its arguments are those of model.fit and of resilient.fit."
        if name in ours:  # an option of ``ResilientFit``
            hint = f"Pass `{name}` where you make the ResilientFit."
        elif close := get_close_matches(name, [*parameters, *ours], n=1):
            hint = f"Did you mean `{close[0]}`?"
        raise TypeError(message(f"fit() has no argument `{name}`.", hint=hint))


def require_options(given: Iterable[str], ours: Collection[str]) -> None:
    """Raise TypeError for an option that ``resilient.fit`` does not have."""
    for name in given:
        if name in ours:
            continue
        hint = "Options are those of resilient.fit."
        if close := get_close_matches(name, ours, n=1):
            hint = f"Did you mean `{close[0]}`?"
        raise TypeError(message(f"There is no option `{name}`.", hint=hint))
