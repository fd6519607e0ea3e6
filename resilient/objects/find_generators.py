"""Finds the random generators that user data draws from.

Data draws from generators in its attributes and within reach of its functions: module
variables, such as ``rng = np.random.default_rng(0)`` above a class, and closures. So
the code of the user's methods and functions is searched for the names it uses. Global
generators of libraries are left out: every checkpoint has them.
"""

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from resilient.serialization import classes
from resilient.serialization.rng import global_generators, is_generator

_DEPTH = 8
_ITEMS = 64  # longer lists hold samples, not parts
_ENTERED = frozenset(
    {("torch", "Dataset"), ("torch", "Sampler"), ("torch", "Module")}
    | {("keras", "PyDataset")}
)
_DESCRIPTORS = (
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
    functools.partialmethod,
)


def find(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The generators reachable from these objects, by path, each once."""
    found: dict[str, Any] = {}
    met = {id(generator): generator for generator in global_generators().values()}
    for name, value in parts.items():
        _search(value, name, found, met)
    return found


def unclaimed(
    found: Mapping[str, Any], claimed: MutableMapping[int, Any]
) -> dict[str, Any]:
    """Claim the generators that no other data of this fit restores.

    Validation data is prepared after some training: generators that it shares with the
    training data were already restored, and drawn from since.
    """
    mine = {path: item for path, item in found.items() if id(item) not in claimed}
    claimed.update({id(item): item for item in mine.values()})
    return mine


def _search(value: Any, path: str, found: dict[str, Any], met: dict[int, Any]) -> None:
    """Breadth first, so that a long detour does not use up the depth.

    Args:
        value: Where to start.
        path: Its name.
        found: Receives the generators.
        met: Searched objects by id, kept alive so that ids stay unique.
    """
    todo = deque([(value, path, 0)])
    while todo:
        value, path, depth = todo.popleft()
        if id(value) in met:
            continue
        if is_generator(value):
            met[id(value)] = value
            if not isinstance(value, random.SystemRandom):
                found[path] = value
            if isinstance(value, np.random.Generator):
                met[id(value.bit_generator)] = value.bit_generator
            continue
        inner = _inner(value) if depth < _DEPTH else {}
        if inner:
            met[id(value)] = value
        todo.extend((item, f"{path}.{key}", depth + 1) for key, item in inner.items())


def _inner(value: Any) -> Mapping[Any, Any]:
    """What an object refers to, by name."""
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):  # numpy's too: `normal = rng.normal`
        return {"self": value.__self__, "func": value.__func__}
    if isinstance(value, types.BuiltinMethodType):  # such as `draw = generator.random`
        return {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        return {} if classes.is_foreign(value) else _names(value)  # type: ignore[arg-type]
    if isinstance(value, type):
        return _methods(value)
    if isinstance(value, types.ModuleType):
        return {}
    items = _items(value)
    if _is_entered(type(value)):
        return {**items, **_methods(type(value)), **classes.attributes(value)}
    wrapped = getattr(type(value), "__wrapped__", None) and value.__wrapped__
    return {"wrapped": wrapped} if wrapped else items


def _items(value: Any) -> Mapping[Any, Any]:
    """The items of a short list, tuple or dict."""
    if not isinstance(value, list | tuple | dict) or len(value) > _ITEMS:
        return {}
    return dict(value) if isinstance(value, dict) else dict(enumerate(value))


def _is_entered(cls: type) -> bool:
    """Whether attributes of such objects may be, or draw from, generators.

    Objects of other libraries count as well: they call user functions.
    """
    names = {(classes.top_module(base), base.__name__) for base in cls.__mro__}
    if ("keras", "KerasSaveable") in names:
        return False  # on torch these are modules
    return not classes.is_foreign(cls) or not names.isdisjoint(_ENTERED)


def _methods(cls: type) -> dict[str, Any]:
    """The functions of user-defined classes among a class and its bases."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if classes.is_foreign(base):
            continue
        for name, item in vars(base).items():
            # An override may call it through `super()`.
            key = f"{base.__name__}.{name}" if name in found else name
            found[key] = _function(item)
    return found


def _function(item: Any) -> Any:
    """The functions inside a static method, property and the like."""
    if not isinstance(item, _DESCRIPTORS):
        return item
    names = ("__func__", "fget", "func")
    return next(getattr(item, name) for name in names if hasattr(item, name))


def _names(function: types.FunctionType) -> dict[str, Any]:
    """The objects within reach of a function: globals, closure and defaults."""
    found: dict[str, Any] = {}
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    found["defaults"] = function.__defaults__ or ()
    found["keyword_defaults"] = function.__kwdefaults__ or {}
    for space, name, value in _global_names(function):
        found.setdefault(f"{space}{name}", value)
    return found


def _global_names(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Module, name and value of each global name in a function's code.

    User modules are searched as well, as in `settings.rng.normal()`, even if the
    function itself imports them.
    """
    used = dict.fromkeys(_used(function.__code__))
    imported = {name: sys.modules[name] for name in used if name in sys.modules}
    spaces: list[tuple[str, Mapping[str, Any]]]
    spaces = [("", function.__globals__), ("", imported)]
    entered: set[int] = set()
    for space, values in spaces:  # grows during iteration
        for name in used:
            value = values.get(name)
            if not isinstance(value, types.ModuleType):
                if name in values:
                    yield space, name, value
            elif id(value) not in entered and not _is_library(value):
                entered.add(id(value))
                spaces.append((f"{space}{name}.", vars(value)))


def _used(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _used(inner)


def _is_library(module: types.ModuleType) -> bool:
    name = module.__name__.partition(".")[0]
    probe = type("_", (), {"__module__": name})
    return classes.is_foreign(probe)
