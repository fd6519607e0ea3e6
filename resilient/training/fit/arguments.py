"""Checks the keyword arguments of ``fit`` before anything is done.

Keras would refuse an unknown one too, but only after the directory is locked, and
without mentioning our arguments.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from resilient.errors import message


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
