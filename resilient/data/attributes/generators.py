"""Generators of random numbers that the user's data draws from: found, kept, put back.

Data draws not only from its attributes, but from what its functions reach: variables
of a module, as in ``rng = np.random.default_rng(0)`` above a class, and what a closure
holds. So the code of the user's own methods and functions is read for the names it
uses. Global generators of libraries are not among these: a checkpoint has them anyway.

States are kept whole, not as changes since the script made the generators: it may have
seeded them from a global generator, or not at all.
"""

import functools
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from resilient.data.source import Settings
from resilient.encoding import plain_objects

_KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
)
_DEPTH = 8
_ITEMS = 64  # a longer list holds samples, not parts
_ENTERED = frozenset(
    {("torch", "Dataset"), ("torch", "Sampler"), ("torch", "Module")}
    | {("keras", "PyDataset")}
)


def find(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The generators that these objects lead to, by path; each once."""
    found: dict[str, Any] = {}
    met = {id(generator) for generator in _global()}
    for name, value in parts.items():
        _walk(value, name, _DEPTH, found, met)
    return found


def unclaimed(found: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Those that no other data of this fit puts back; from now on they are claimed.

    Validation data is made after some training, when what it shares with the training
    data was put back long ago and went on.
    """
    claimed = settings.claimed
    mine = {path: item for path, item in found.items() if id(item) not in claimed}
    claimed.update(map(id, mine.values()))
    return mine


def state(generator: Any) -> Any:
    """The state of a generator, of values that can be compared."""
    if _is_torch(generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return frozen(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return frozen(generator.state)
    if isinstance(generator, np.random.RandomState):
        return frozen(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, np.array(words, "<u4").tobytes(), gauss]


def set_state(generator: Any, state: Any) -> None:
    """Set what ``state`` returned."""
    if _is_torch(generator):
        import torch

        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = thawed(state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = thawed(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(thawed(state))
    else:
        version, words, gauss = state
        internal = tuple(np.frombuffer(words, "<u4").tolist())
        generator.setstate((version, internal, gauss))


def frozen(value: Any) -> Any:
    """Arrays as their dtype and bytes: these compare as one value."""
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "bytes": value.tobytes()}
    return value.item() if isinstance(value, np.generic) else value


def thawed(value: Any) -> Any:
    """What ``frozen`` was given."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "bytes"}:
        return np.frombuffer(value["bytes"], value["dtype"]).copy()
    return {key: thawed(item) for key, item in value.items()}


def _is_torch(value: Any) -> bool:
    cls = type(value)
    return (plain_objects.top_module(cls), cls.__name__) == ("torch", "Generator")


def _global() -> Iterator[Any]:
    """The libraries' own ones."""
    yield random.getstate.__self__  # type: ignore[attr-defined]
    yield np.random.get_state.__self__  # type: ignore[attr-defined]
    if "torch" in sys.modules:
        yield sys.modules["torch"].default_generator


def _walk(
    value: Any, path: str, depth: int, found: dict[str, Any], met: set[int]
) -> None:
    if not depth or id(value) in met:
        return
    if _is_torch(value) or isinstance(value, _KINDS):
        met.add(id(value))
        if not isinstance(value, random.SystemRandom):
            found[path] = value
        if isinstance(value, np.random.Generator):
            met.add(id(value.bit_generator))
        return
    inner = _inner(value)
    if inner:
        met.add(id(value))
    for key, item in inner.items():
        _walk(item, f"{path}.{key}", depth - 1, found, met)


def _inner(value: Any) -> Mapping[Any, Any]:
    """What something leads to, by name."""
    if isinstance(value, list | tuple):
        return dict(enumerate(value)) if len(value) <= _ITEMS else {}
    if isinstance(value, dict):
        return dict(value) if len(value) <= _ITEMS else {}
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return {"self": value.__self__, "func": value.__func__}
    if isinstance(value, types.BuiltinMethodType):  # such as `normal = rng.normal`
        return {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        return {} if plain_objects.is_foreign(value) else _names(value)  # type: ignore[arg-type]
    if isinstance(value, type):
        return _methods(value)
    if isinstance(value, types.ModuleType):
        return {}
    if _is_entered(type(value)):
        return {**plain_objects.attributes(value), **_methods(type(value))}
    wrapped = getattr(type(value), "__wrapped__", None) and value.__wrapped__
    return {"wrapped": wrapped} if wrapped else {}


def _is_entered(cls: type) -> bool:
    """Whether the attributes of such objects may be generators, or draw from some."""
    names = {(plain_objects.top_module(base), base.__name__) for base in cls.__mro__}
    if ("keras", "KerasSaveable") in names:
        return False  # on torch these are modules
    if plain_objects.is_plain(cls) or not names.isdisjoint(_ENTERED):
        return True
    # Transforms of other libraries: they call functions of the user's.
    return cls.__mro__[1:] == (object,) and not plain_objects.is_foreign(cls)


def _methods(cls: type) -> dict[str, Any]:
    """The functions of a class and its bases, where they are the user's own."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if plain_objects.is_foreign(base):
            continue
        for name, item in vars(base).items():
            function = getattr(item, "__func__", item)  # of static and class methods
            found.setdefault(name, getattr(function, "fget", function))
    return found


def _names(function: types.FunctionType) -> dict[str, Any]:
    """What a function finds under the names in its code, and as its defaults."""
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
    used = dict.fromkeys(_used(function.__code__))
    spaces = [function.__globals__]
    for name in used:
        module = function.__globals__.get(name)
        if isinstance(module, types.ModuleType) and not _is_library(module):
            spaces.append(vars(module))  # as in `settings.rng.normal()`
    for space in spaces:
        for name in used:
            if name in space:
                found.setdefault(name, space[name])
    return found


def _used(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _used(inner)


def _is_library(module: types.ModuleType) -> bool:
    name = module.__name__.partition(".")[0]
    probe = type("_", (), {"__module__": name})
    return plain_objects.is_foreign(probe)
