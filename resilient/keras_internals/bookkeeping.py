"""Knows which private attributes of an object belong to Keras or a backend.

The rule is derived, so that it holds for every release: a private name that code of
Keras or of a backend, among the bases of a class, stores or spells out. Such attributes
are theirs to keep; writing half of what they built lazily would break training.
"""

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from resilient.once import once

_OWNERS = frozenset({"keras", "tensorflow", "torch", "jax", "jaxlib", "flax"})
_STORE = dis.opmap["STORE_ATTR"]

# Public attributes that Keras sets on objects while it builds and trains them.
_PUBLIC = frozenset(
    {
        *("built", "training", "stop_training", "stop_evaluating", "stop_predicting"),
        *("train_function", "test_function", "predict_function", "compiled", "name"),
        *("autocast", "supports_jit", "history", "steps_per_execution", "optimizer"),
        *("loss", "loss_weights"),
    }
)


@once
def owned_by(cls: type) -> frozenset[str]:
    """The attributes of objects of this class that are Keras's or a backend's."""
    bases = (b for b in cls.__mro__ if str(b.__module__).partition(".")[0] in _OWNERS)
    found = frozenset[str]().union(*map(_names_of_base, bases))
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.nn.Module):
        found |= vars(torch.nn.Module()).keys()  # `training`, too
    of_keras = any(base.__name__ == "KerasSaveable" for base in cls.__mro__)
    return found | _PUBLIC if of_keras else found


@functools.lru_cache(4096)  # of libraries alone
def _names_of_base(base: type) -> frozenset[str]:
    codes = (code for item in vars(base).values() for code in _codes_of(item))
    return frozenset(name for code in codes for name in _stored(code))


def _codes_of(item: Any) -> Iterator[types.CodeType]:
    """The code of a method, property or class method, and of functions inside it."""
    for name in ("fget", "fset", "__func__", "__wrapped__", ""):
        function = getattr(item, name, None) if name else item
        if isinstance(function, types.FunctionType):
            yield from nested(function.__code__)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Some code, and that of the functions inside."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from nested(inner)


def _stored(code: types.CodeType) -> Iterator[str]:
    """Private names that some code stores as attributes, or spells out."""
    operations, place = code.co_code[::2], -1
    while (place := operations.find(_STORE, place + 1)) >= 0:
        argument = code.co_code[2 * place + 1]
        if argument < len(code.co_names) and code.co_names[argument].startswith("_"):
            yield code.co_names[argument]
    for constant in code.co_consts:
        if (
            isinstance(constant, str)
            and constant[:1] == "_"
            and constant.isidentifier()
        ):
            yield constant
