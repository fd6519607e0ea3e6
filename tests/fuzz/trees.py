"""JSON changed node by node: what a stranger who knows the format would write."""

import contextlib
import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from resilient.serialization.json_types import BY_TAG

_UP = tuple("../" * depth + "canary" for depth in range(1, 7))  # see `canary`
_INTEGERS = (-1, 0, 1, 2, 63, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63)
_INTEGERS += (2**64, -(2**63), 10**30, -(10**30))
_FLOATS = (-0.0, 0.5, 1e308, -1e308, 5e-324, 1e19)
_DTYPES = ("V0", "S0", "U0", "O", "|O", "f4", "<f8", ">i2", "bool", "V9999999999")
_DTYPES += ("S1", "<U4", "M8[ns]", "m8[D]", "bfloat16", "float8_e4m3fn", "complex64")
_DTYPES += ("[('a', 'O')]", "[('a', '<f4', (1000000, 1000000))]", "([('a','f4')],)")
_DTYPES += ("(" * 300, "[('a', 'f4'), ('a', 'f4')]", "f4,O", "int4", "T", "i4,i4")
_PATHS = (*_UP, "/proc/self/environ", "/etc/passwd", "a/../../b")
_PATHS += ("", ".", "..", "/", "x\0y", "run.json", "manifest.json")
_NAMES = ("os:system", "os.system", "builtins:eval", "builtins.eval", "posix:system")
_NAMES += ("subprocess:Popen", "numpy:load", "keras:Model", "builtins:object")
_NAMES += ("builtins:list", "builtins:dict", "builtins:bytes", "numpy:add")
_ODD = ("\x1b[2J", "\u202e", "\ud800", "nan", "inf", "-inf", "1E999999999", "0x", "é")
_ODD += ("x" * 5000, "%s%n", "{0.__class__}", "__class__", "AAAA", "=", "00" * 8)
_ODD += ("Europe/Paris", "posixrules", "PCG64", "MT19937", "!", "v", "-1")
_TEXTS = (*_DTYPES, *_PATHS, *_NAMES, *_ODD)
_KEYS = ("!", "v", "dtype", "shape", "base64", "array", "order", "state", "kind", "")
_TAGS = ("ref", "array", "import", *BY_TAG)

Node = tuple[Any, Any]  # a container, and the key in it


def mutated(raw: bytes, random: Random, written: Callable[[Any], bytes]) -> bytes:
    """JSON with a few changes, as ``written`` writes it."""
    root = [copy.deepcopy(json.loads(raw))]
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        nodes = list(_nodes(root)) or [(root, 0)]
        container, key = random.choice(nodes)
        # What was made deep before cannot be copied; infinity is no integer.
        with contextlib.suppress(RecursionError, OverflowError, ValueError):
            random.choice(_CHANGES)(container, key, random, nodes)
    return written(root[0] if root else None)


def compact(value: Any) -> bytes:
    """As this library writes most JSON."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"null"


def anything(random: Random, depth: int = 0) -> Any:
    """Any value, with what readers look for in it."""
    kind = random.randrange(10 if depth < 4 else 6)
    if kind < 2:
        return random.choice(_INTEGERS)
    if kind == 2:
        return random.choice((*_FLOATS, None, True, False))
    if kind < 6:
        return random.choice(_TEXTS)
    if kind == 6:
        return [anything(random, depth + 1) for _ in range(random.randrange(5))]
    if kind == 7:
        keys = random.choices((*_KEYS, *_TEXTS), k=random.randrange(4))
        return {key: anything(random, depth + 1) for key in keys}
    if kind == 8:
        return {"!": random.choice(_TAGS), "v": anything(random, depth + 1)}
    return _encoded(random, depth + 1)


def _encoded(random: Random, depth: int) -> Any:
    """A value that is nearly right."""

    def inner() -> Any:
        return anything(random, depth + 1)

    kind = random.randrange(6)
    if kind == 0:
        shape = random.choices((0, 1, 2, 2**20, 2**31, 2**40, 2**62, -1), k=2)[
            : random.randrange(3)
        ]
        text = random.choice(("", "AA==", "AAAAAAAA", "x", 3))
        array = {"dtype": random.choice(_DTYPES), "shape": shape, "base64": text}
        if random.random() < 0.3:
            array["order"] = "F"
        tag = random.choice(("array", "array", "scalar", "list"))
        return {"!": tag, "v": {"!": "array", "v": array} if tag == "list" else array}
    if kind == 1:
        return {"!": "dict", "v": [[inner(), inner()] for _ in range(2)]}
    if kind == 2:
        tag = random.choice(("enum", "namedtuple", "object", "tensor", "objects"))
        return {"!": tag, "v": [random.choice(_TEXTS), inner()]}
    if kind == 3:
        return {"!": "import", "v": random.choice(_NAMES)}
    if kind == 4:
        parts = [inner() for _ in range(random.randrange(9))]
        return {"!": random.choice((*BY_TAG,)), "v": parts}
    value = inner()
    for _ in range(random.choice((3, 300, 800))):
        value = [value]
    return value


def _nodes(value: Any) -> Any:
    """Every node of a tree, without recursion."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        items = container.items() if isinstance(container, dict) else None
        for key, item in items or enumerate(container):
            yield container, key
            if isinstance(item, dict | list) and item:
                waiting.append(item)


def _is_there(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def _delete(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    if _is_there(container, key):
        del container[key]


def _replace(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    if _is_there(container, key):
        container[key] = anything(random)


def _insert(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    if isinstance(container, dict):
        container[random.choice((*_KEYS, *_TEXTS))] = anything(random)
    else:
        container.insert(key, anything(random))


def _repeat(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    if isinstance(container, list) and _is_there(container, key):
        container[key:key] = [copy.deepcopy(container[key])] * random.choice((1, 3, 99))


def _rename(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    if isinstance(container, dict) and key in container:
        others = [k for _, k in nodes if isinstance(k, str)]
        container[random.choice((*_KEYS, *_TEXTS, *others))] = container.pop(key)


def _swap(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    other, other_key = random.choice(nodes)
    if _is_there(container, key) and _is_there(other, other_key):
        container[key] = copy.deepcopy(other[other_key])


def _nearly(container: Any, key: Any, random: Random, nodes: list[Node]) -> None:
    """A value of the same type."""
    if not _is_there(container, key):
        return
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int):
        container[key] = random.choice((value + 1, value - 1, -value, *_INTEGERS))
    elif isinstance(value, float):
        container[key] = random.choice((-value, value * 1e200, *_FLOATS, int(value)))
    elif isinstance(value, str):
        at = random.randrange(len(value) + 1)
        new = (value[:at], value[at:], value * 20, value[:at] + "A" + value[at + 1 :])
        container[key] = random.choice((*new, *_TEXTS))
    else:
        container[key] = type(value)()


_CHANGES = (_delete, _replace, _replace, _insert, _repeat, _rename, _swap, _nearly)
_CHANGES += (_nearly, _nearly)
