"""Finds the global names that code of the user uses."""

import dis
import sys
import types
from typing import Any

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
    found = dict.fromkeys(
        each.argval for each in dis.get_instructions(code) if each.opname in _GLOBALS
    )
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(_names(inner)))
    return tuple(found)


@once
def _attributes(code: types.CodeType) -> tuple[str, ...]:
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(dict.fromkeys(_attributes(inner)))
    return tuple(found)
