"""Reads a pickle as data: nothing that it names is looked up, imported or called.

What it would look up is a ``Name`` here, and what it would make by a call a ``Made``.
The reader of a format compares those with what the format's writer writes.
"""

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_BYTES = 64 << 20  # far above real use: names and shapes of tensors
_MOST_OPERATIONS = 1 << 24  # each makes one small object at most


class PickleError(ValueError):
    """It is not a pickle, or has operations that pickles of tensors do not have."""


@dataclass(frozen=True)
class Name:
    """What a pickle would look up: the module and the name in it, with a dot."""

    name: str


@dataclass(eq=False)
class Made:
    """What a pickle would make by a call.

    Attributes:
        name: Of what it would call; ``""`` for what the program that loads it provides.
        arguments: Of the call.
        state: What it would set afterwards.
    """

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read(pickle: bytes) -> Any:
    """The value: plain values, tuples, lists, dicts, ``Name`` and ``Made``.

    An ``OrderedDict`` is a dict, without attributes that were set.

    Raises:
        PickleError: It has other operations than those that pickles of tensors have, or
            is too large.
    """
    if len(pickle) > _MOST_BYTES:
        raise PickleError(f"{len(pickle):,} bytes are too many")
    machine = _Machine()
    try:
        return machine.run(pickle)
    except IndexError:
        raise PickleError(
            "it is cut off, or takes more than it has put there"
        ) from None
    except (ValueError, LookupError, struct.error) as error:
        raise PickleError(str(error)) from None


class _Machine:
    """What a pickle works on: a stack of values, and a memo of some of them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.below_marks: list[list[Any]] = []

    def run(self, pickle: bytes) -> Any:
        """The value."""
        at = 0
        for _ in range(_MOST_OPERATIONS):
            code = pickle[at]
            at += 1
            if code == _STOP:
                return self._result()
            if code not in _OPERATIONS:
                raise PickleError(f"it has the operation {_NAMES.get(code, code)}")
            apply, argument = _OPERATIONS[code]
            if argument is None:
                apply(self, None)
                continue
            value, at = argument(pickle, at)
            apply(self, value)
        raise PickleError(f"more than {_MOST_OPERATIONS:,} operations are too many")

    def _result(self) -> Any:
        if len(self.stack) != 1:
            raise PickleError("it has no value, or several")
        return self.stack[0]


# Reads an operation's argument in the pickle: the value, and where it ends.
_Read = Callable[[bytes, int], tuple[Any, int]]
_Apply = Callable[[_Machine, Any], None]


def _name(module: object, name: object) -> Name:
    return Name(f"{_is(str, module)}.{_is(str, name)}")


def _made(called: object, arguments: object) -> Any:
    name = _is(Name, called).name
    if name == "collections.OrderedDict" and not arguments:
        return {}
    return Made(name, _is(tuple, arguments))


def _provided(identity: object) -> Made:
    return Made("", _is(tuple, identity))


def _with_state(made: object, state: object) -> Any:
    if not isinstance(made, dict):
        _is(Made, made).state = state
    return made


def _with_item(into: object, key: object, value: object) -> Any:
    # Other keys, tuples of tuples, may take forever to hash.
    _is(dict, into)[_is(str | int | Made, key)] = value
    return into


def _with_value(into: object, value: object) -> Any:
    _is(list, into).append(value)
    return into


def _set_items(stack: list[Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        _with_item(stack[-1], key, value)


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise PickleError(f"it has a {type(value).__name__} in the wrong place")
    return value


def _byte(pickle: bytes, at: int) -> tuple[int, int]:
    return pickle[at], at + 1


def _number(form: str) -> _Read:
    """Reads a number in a form of ``struct``."""
    found = struct.Struct(form)
    unpack, size = found.unpack_from, found.size

    def read(pickle: bytes, at: int) -> tuple[Any, int]:
        return unpack(pickle, at)[0], at + size

    return read


def _bytes(length: _Read) -> _Read:
    """Reads bytes after their number."""

    def read(pickle: bytes, at: int) -> tuple[bytes, int]:
        size, begin = length(pickle, at)
        end = begin + size
        if end > len(pickle):
            raise PickleError("it is cut off")
        return pickle[begin:end], end

    return read


def _text(length: _Read) -> _Read:
    stored = _bytes(length)

    def read(pickle: bytes, at: int) -> tuple[str, int]:
        found, end = stored(pickle, at)
        return found.decode("utf-8", "surrogatepass"), end

    return read


def _two_lines(pickle: bytes, at: int) -> tuple[str, int]:
    end = pickle.index(b"\n", pickle.index(b"\n", at) + 1)
    return pickle[at:end].decode("ascii").replace("\n", "."), end + 1


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _pushes(make: Callable[[Any], Any]) -> _Apply:
    return lambda machine, argument: machine.stack.append(make(argument))


def _put(machine: _Machine, key: int | None) -> None:
    memo = machine.memo
    memo[len(memo) if key is None else key] = machine.stack[-1]


def _get(machine: _Machine, key: int) -> None:
    machine.stack.append(machine.memo[key])


def _mark(machine: _Machine, _: None) -> None:
    machine.below_marks.append(machine.stack)
    machine.stack = []


def _of_marked(do: Callable[[list[Any], list[Any]], None]) -> _Apply:
    """With everything above the last mark."""

    def apply(machine: _Machine, _: None) -> None:
        marked, machine.stack = machine.stack, machine.below_marks.pop()
        do(machine.stack, marked)

    return apply


def _of_top(count: int, make: Callable[..., Any]) -> _Apply:
    """With so many values, which it replaces by one."""

    def apply(machine: _Machine, _: None) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise PickleError("it takes more than it has put there")
        stack[-count:] = [make(*stack[-count:])]

    return apply


def _tuple(*values: Any) -> tuple[Any, ...]:
    return values


_LONG = _number("<I")
_BY_NAME: dict[str, tuple[_Apply, _Read | None]] = {
    "PROTO": (lambda machine, version: None, _byte),
    "FRAME": (lambda machine, length: None, _number("<Q")),
    "NONE": (_push, None),
    "NEWTRUE": (_pushes(lambda _: True), None),
    "NEWFALSE": (_pushes(lambda _: False), None),
    "EMPTY_TUPLE": (_pushes(lambda _: ()), None),
    "EMPTY_DICT": (_pushes(lambda _: {}), None),
    "EMPTY_LIST": (_pushes(lambda _: []), None),
    "BININT": (_push, _number("<i")),
    "BININT1": (_push, _byte),
    "BININT2": (_push, _number("<H")),
    "LONG1": (
        _pushes(lambda raw: int.from_bytes(raw, "little", signed=True)),
        _bytes(_byte),
    ),
    "BINFLOAT": (_push, _number(">d")),
    "BINUNICODE": (_push, _text(_LONG)),
    "SHORT_BINUNICODE": (_push, _text(_byte)),
    "GLOBAL": (_pushes(Name), _two_lines),
    "BINPUT": (_put, _byte),
    "LONG_BINPUT": (_put, _LONG),
    "MEMOIZE": (_put, None),
    "BINGET": (_get, _byte),
    "LONG_BINGET": (_get, _LONG),
    "MARK": (_mark, None),
    "TUPLE": (_of_marked(lambda stack, marked: stack.append(tuple(marked))), None),
    "APPENDS": (
        _of_marked(lambda stack, marked: _is(list, stack[-1]).extend(marked)),
        None,
    ),
    "SETITEMS": (_of_marked(_set_items), None),
    "TUPLE1": (_of_top(1, _tuple), None),
    "TUPLE2": (_of_top(2, _tuple), None),
    "TUPLE3": (_of_top(3, _tuple), None),
    "APPEND": (_of_top(2, _with_value), None),
    "SETITEM": (_of_top(3, _with_item), None),
    "STACK_GLOBAL": (_of_top(2, _name), None),
    "REDUCE": (_of_top(2, _made), None),
    "NEWOBJ": (_of_top(2, _made), None),
    "BUILD": (_of_top(2, _with_state), None),
    "BINPERSID": (_of_top(1, _provided), None),
}
_NAMES = {ord(each.code): each.name for each in pickletools.opcodes}
_OPERATIONS = {
    code: _BY_NAME[name] for code, name in _NAMES.items() if name in _BY_NAME
}
_STOP = ord(".")
