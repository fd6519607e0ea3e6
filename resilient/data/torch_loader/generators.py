"""Generators of random numbers, global ones and objects, as plain values.

Their states are kept whole, not as changes since the script made them: it may have
seeded them from a global generator, and that differs between attempts.
"""

import random
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from resilient.encoding import plain_objects

GLOBAL = ("python", "numpy", "torch")

_KINDS = (
    torch.Generator,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
)
_DEPTH = 6
_ITEMS = 64  # a longer list holds samples, not parts


def find(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The generators that these objects lead to, by path; each once."""
    found: dict[str, Any] = {}
    met: set[int] = set()
    for name, value in parts.items():
        _walk(value, name, _DEPTH, found, met)
    return found


def state(name: str, generator: Any) -> Any:
    """The state of a generator, of values that can be compared.

    Args:
        name: One of ``GLOBAL``, or any other name.
        generator: Where the name is another.
    """
    if name == "python":
        generator = random
    elif name == "numpy":
        return _frozen(np.random.get_state(legacy=False))
    elif name == "torch":
        generator = torch.default_generator
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return _frozen(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return _frozen(generator.state)
    if isinstance(generator, np.random.RandomState):
        return _frozen(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, np.array(words, "<u4").tobytes(), gauss]


def set_state(name: str, generator: Any, state: Any) -> None:
    """Set what ``state`` returned."""
    if name == "python":
        generator = random
    elif name == "numpy":
        np.random.set_state(_thawed(state))
        return
    elif name == "torch":
        generator = torch.default_generator
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _thawed(state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = _thawed(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_thawed(state))
    else:
        version, words, gauss = state
        internal = tuple(np.frombuffer(words, "<u4").tolist())
        generator.setstate((version, internal, gauss))


def _frozen(value: Any) -> Any:
    """Arrays as their dtype and bytes: these compare as one value."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "bytes": value.tobytes()}
    return value.item() if isinstance(value, np.generic) else value


def _thawed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "bytes"}:
        return np.frombuffer(value["bytes"], value["dtype"]).copy()
    return {key: _thawed(item) for key, item in value.items()}


def _walk(
    value: Any, path: str, depth: int, found: dict[str, Any], met: set[int]
) -> None:
    if not depth or id(value) in met:
        return
    if isinstance(value, _KINDS):
        met.add(id(value))
        found[path] = value
        if isinstance(value, np.random.Generator):
            met.add(id(value.bit_generator))
        return
    items: Any = ()
    if isinstance(value, (list, tuple)) and len(value) <= _ITEMS:
        items = enumerate(value)
    elif isinstance(value, dict) and len(value) <= _ITEMS:
        items = value.items()
    elif _leads_on(value):
        items = plain_objects.attributes(value).items()
    for key, item in items:
        met.add(id(value))
        _walk(item, f"{path}.{key}", depth - 1, found, met)


def _leads_on(value: Any) -> bool:
    """Whether the attributes of this object may be generators."""
    if isinstance(value, (type, types.FunctionType, types.ModuleType, torch.Tensor)):
        return False
    return plain_objects.is_plain(type(value)) or isinstance(
        value, (torch.utils.data.Dataset, torch.utils.data.Sampler, torch.nn.Module)
    )
