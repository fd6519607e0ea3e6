"""Reads a pickle as data: nothing that it names is looked up, imported or called.

What it would look up is a ``Name`` here, and what it would make by a call a ``Made``.
The reader of a format compares those with what the format's writer writes.
"""

import pickletools
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
        for count, (operation, argument, _) in enumerate(pickletools.genops(pickle)):
            if operation.name == "STOP":
                return machine.result()
            if count > _MOST_OPERATIONS:
                raise PickleError(f"more than {count:,} operations are too many")
            machine.apply(operation.name, argument)
    except (ValueError, LookupError) as error:
        raise PickleError(str(error)) from None
    raise PickleError("it is cut off")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self.stack) != 1:
            raise PickleError("it has no value, or several")
        return self.stack[0]

    def apply(self, operation: str, argument: Any) -> None:
        stack = self.stack
        if operation in _CONSTANTS:
            stack.append(_CONSTANTS[operation])
        elif operation in _EMPTY:
            stack.append(_EMPTY[operation]())
        elif operation in _GIVEN:
            stack.append(argument)
        elif operation == "GLOBAL":
            stack.append(Name(argument.replace(" ", ".")))
        elif operation in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif operation in _GETS:
            stack.append(self._memo[argument])
        elif operation == "MARK":
            self._below_marks.append(stack)
            self.stack = []
        elif operation in _OF_MARKED:
            self.stack = self._below_marks.pop()
            _OF_MARKED[operation](self.stack, stack)
        elif operation in _OF_TOP:
            count, make = _OF_TOP[operation]
            taken = [stack.pop() for _ in range(count)]
            stack.append(make(*reversed(taken)))
        elif operation not in _IGNORED:
            raise PickleError(f"it has the operation {operation}")


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


_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_GIVEN = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE"),
}
_PUTS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"BINGET", "LONG_BINGET"}
_OF_MARKED: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "TUPLE": lambda stack, marked: stack.append(tuple(marked)),
    "APPENDS": lambda stack, marked: _is(list, stack[-1]).extend(marked),
    "SETITEMS": _set_items,
}
# How many values an operation takes, and what it puts there instead.
_OF_TOP: dict[str, tuple[int, Callable[..., Any]]] = {
    "TUPLE1": (1, lambda *taken: taken),
    "TUPLE2": (2, lambda *taken: taken),
    "TUPLE3": (3, lambda *taken: taken),
    "APPEND": (2, _with_value),
    "SETITEM": (3, _with_item),
    "STACK_GLOBAL": (2, _name),
    "REDUCE": (2, _made),
    "NEWOBJ": (2, _made),
    "BUILD": (2, _with_state),
    "BINPERSID": (1, _provided),
}
