"""Finds the global names that code of the user uses."""

import dis
import sys
import types
from typing import Any

from resilient.keras_internals.bookkeeping import nested
from resilient.once import once
from resilient.serialization import classes

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


def global_names(function: types.FunctionType) -> list[tuple[dict[str, Any], str]]:
    """The mapping and the name of each global that a function uses.

    Attributes of the user's own modules count as well, as in ``settings.rate``, even if
    the function itself imports them.
    """
    code, found = function.__code__, list[tuple[dict[str, Any], str]]()
    imported = (sys.modules.get(name) for name in code.co_names)
    modules = [each for each in imported if each is not None]
    entered: set[int] = set()
    for name in _names(code):
        if name in function.__globals__:
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType):
                modules.append(value)
            else:
                found.append((function.__globals__, name))
    while modules:
        module = modules.pop()
        if id(module) in entered or classes.is_others_module(module.__name__):
            continue
        entered.add(id(module))
        values = vars(module)
        for name in _attributes(code):
            value = values.get(name)
            if isinstance(value, types.ModuleType):
                modules.append(value)
            elif name in values:
                found.append((values, name))
    return found


@once
def _names(code: types.CodeType) -> tuple[str, ...]:
    steps = (each for inner in nested(code) for each in dis.get_instructions(inner))
    return tuple({each.argval: None for each in steps if each.opname in _GLOBALS})


@once
def _attributes(code: types.CodeType) -> tuple[str, ...]:
    return tuple({name: None for inner in nested(code) for name in inner.co_names})
