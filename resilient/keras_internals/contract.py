"""Checks that the private parts of Keras that we rely on still exist.

It checks only names: a part that no longer mentions one of these names has changed, and
must be read before an exact resume can be promised again. A name may move to a private
helper of the same class or module: a Keras release that changes nothing we rely on
needs no release of ours.
"""

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from resilient import keras_internals
from resilient.errors import NotSupportedError
from resilient.keras_internals import BACKEND, EPOCH_ITERATOR, trainer_module
from resilient.keras_internals.expected import (
    EXPECTED,
    OWN,
    OWNERS,
    Labels,
)
from resilient.keras_internals.unknown import unknown_keras


def changes() -> list[str]:
    """Deviations of the installed Keras, a line each."""
    found = [
        f"keras.src.backend.{BACKEND}.trainer has no {name}"
        for name in (EPOCH_ITERATOR, "callbacks_module")
        if not hasattr(trainer_module, name)
    ]
    found.extend(_changes_in(EXPECTED))
    if not _keeps_the_seed_generator():
        found.append("the global seed generator is kept under another name")
    iterate = keras_internals.EpochIterator._enumerate_iterator
    if not inspect.isgeneratorfunction(iterate):
        found.append("EpochIterator._enumerate_iterator is no generator")
    return found


def _changes_in(contract: Labels) -> list[str]:
    found = []
    for label, expected in contract.items():
        owner, _, name = label.partition(".")
        thing = getattr(OWNERS[owner], name, None) if name else OWNERS[owner]
        if thing is None:
            found.append(f"{owner} has no {name}")
            continue
        missing = set(expected) - _names(thing)
        for helper in _helpers(thing, OWNERS[owner]) if missing else ():
            missing -= _names(helper) - OWN.get(label, set())
        found.extend(f"{label} no longer mentions {gone}" for gone in sorted(missing))
    return found


def _names(thing: Any) -> set[str]:
    """Every name in the code of a function, or of a class's functions, nested too."""
    if inspect.isclass(thing):
        functions = [f for _, f in inspect.getmembers(thing, inspect.isfunction)]
    else:
        functions = [thing]
    codes = [getattr(inspect.unwrap(f), "__code__", None) for f in functions]
    todo: list[CodeType] = [code for code in codes if code is not None]
    names: set[str] = set()
    while todo:
        code = todo.pop()
        names.update(code.co_names, code.co_varnames, code.co_cellvars)
        names.update(c for c in code.co_consts if isinstance(c, str))
        todo.extend(c for c in code.co_consts if isinstance(c, CodeType))
    return names


def _helpers(thing: Any, owner: Any) -> Iterator[Any]:
    """The private functions, of its class and module, that a function mentions."""
    function = inspect.unwrap(thing)
    for name in _names(function) if isinstance(function, FunctionType) else ():
        found = getattr(owner, name, None) or function.__globals__.get(name)
        private = name.startswith("_") and not name.startswith("__")
        if private and isinstance(found, FunctionType):
            yield found


def _keeps_the_seed_generator() -> bool:
    """Whether the global seed generator is where we look for it."""
    expected, seeds = (
        keras_internals.GLOBAL_SEED_GENERATOR,
        keras_internals.seed_generator,
    )
    # A constant of its own since Keras 3.13.
    key = getattr(seeds, "GLOBAL_SEED_GENERATOR", expected)
    known = {key, "GLOBAL_SEED_GENERATOR"} & _names(seeds.global_seed_generator)
    return key == expected and bool(known)


def require_known_keras() -> None:
    """Raise unless Keras is built as expected.

    Raises:
        NotSupportedError: Names the Keras version and what changed, or what replaced a
            part of Keras.
    """
    require_known(EXPECTED)
    _require_none(changes())


def require_known(part: Labels) -> None:
    """The same, for a part of Keras that not everybody uses."""
    replaced = [found for label in part for found in _replacements(label)]
    if replaced:
        raise NotSupportedError(
            "Something replaced a part of Keras that an exact resume relies on, and "
            "what the replacement does is unknown.",
            received="; ".join(replaced),
            hint="Remove the replacement. A wrapper that uses functools.wraps is "
            "accepted, and so is any wrapper of keras.Model.fit.",
        )
    _require_none(_changes_in(part))


def _replacements(label: str) -> Iterator[str]:
    """What replaced a Keras method, if anything."""
    owner, _, name = label.partition(".")
    found = getattr(OWNERS[owner], name, None) if name else None
    if found is None:
        return
    found = inspect.unwrap(found)
    while isinstance(found, functools.partial):
        found = found.func
    module = getattr(found, "__module__", None) or "keras"
    if module.partition(".")[0] != "keras":
        kind = getattr(found, "__qualname__", type(found).__qualname__)
        yield f"{label} is {kind} of {module}"


def _require_none(found: list[str]) -> None:
    if found:
        raise unknown_keras("; ".join(found))
