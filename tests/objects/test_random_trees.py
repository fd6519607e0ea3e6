"""Random trees of objects, changed at random: restored in a process that made the same.

The same means equal to the bit and shared alike. Where a change cannot be saved, its
place is named. A change of one thing names that thing alone.
"""

import collections
import dataclasses
import enum
import json
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple
from unittest.mock import ANY

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient.objects.callbacks.capture import CallbackStates


class Side(enum.Enum):
    LEFT = (1, 2)
    RIGHT = "r"


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a dictionary, which needs its attributes to be one."""

    number: int


NAMES = ("a", "b", "_c", "__d", "e1")
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, 2**70, 0.0, -0.0, 1e-300, float("nan"), float("-inf")),
    *("", "a", "\ud800", b"\x00", 1 + 2j, ..., np.float32(0.1), np.int8(-1)),
    *((1, (2.0, "x")), frozenset({1, "b"}), range(3), np.dtype("f4")),
    *(Side.LEFT, Side.RIGHT, Pair(1, "b"), frozenset()),
)
DTYPES = ("f4", "f8", "i4", "?", "c8", "S3", ">i2", "M8[s]")
TOTAL = 0  # a global that a function counts in


class Plain:
    """An object that can be made anew."""


class Slotted:
    """Attributes without a dictionary."""

    __slots__ = ("a", "b", "rest")


class Locked:
    """An object that cannot be made anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Counted:
    """State in the class."""

    count: ClassVar[Any] = 0
    seen: ClassVar[Any] = []


class Rows(list[Any]):
    """A container with attributes."""


class Holder(keras.callbacks.Callback):
    def __init__(self, root: Any) -> None:
        super().__init__()
        self.root = root


def closures(value: Any, default: Any) -> tuple[Callable[..., Any], ...]:
    """Two functions that share a variable; one has a default, and uses a global."""

    def get(into: Any = default, *, key: Any = default) -> Any:
        global TOTAL
        TOTAL += 1
        return value, into, key

    def put(new: Any) -> None:
        nonlocal value
        value = new

    return get, put


# What a script makes ---------------------------------------------------------------


def array(draw: random.Random) -> np.ndarray:
    shape = [(), (3,), (0,), (2, 3), (40, 3)][draw.randrange(5)]
    numbers = np.random.default_rng(draw.randrange(9)).integers(0, 100, shape)
    found = np.array(numbers.astype(draw.choice(DTYPES)))
    return np.asfortranarray(found) if draw.random() < 0.3 else found


def generator(draw: random.Random) -> Any:
    seed = draw.randrange(9)
    makers: list[Callable[[int], Any]] = [
        *(random.Random, np.random.default_rng, np.random.RandomState),
        lambda s: np.random.Generator(np.random.MT19937(s)),
    ]
    return draw.choice(makers)(seed)


def new(draw: random.Random, pool: list[Any]) -> Any:
    """A new object that can be made anew, with what is in the pool."""

    def some() -> Any:
        return (
            draw.choice(pool) if pool and draw.random() < 0.6 else draw.choice(VALUES)
        )

    def items() -> list[Any]:
        return [some() for _ in range(draw.randrange(4))]

    kind = draw.randrange(14)
    if kind == 0:
        return collections.deque(items(), draw.choice([None, 3]))
    if kind == 1:
        return {draw.choice(["k", 1, 2.5, None, ("t", 1)]): item for item in items()}
    if kind == 2:
        return collections.OrderedDict(zip("abcd", items(), strict=False))
    if kind == 3:
        return collections.defaultdict(list, zip("abcd", items(), strict=False))
    if kind == 4:
        return collections.Counter("abca")
    if kind == 5:
        return {draw.randrange(9), "a", None}
    if kind == 6:
        return bytearray(draw.randbytes(3))
    if kind == 7:
        return array(draw)
    if kind == 8:
        return generator(draw)
    if kind == 9:
        return tuple(items())
    if kind == 10:
        return items()
    if kind == 11:
        return {Key(draw.randrange(3)): item for item in items()}
    if kind == 12:
        return Pair(some(), some())
    made: Any = Plain()
    for name in NAMES[: draw.randrange(5)]:
        vars(made)[name] = some()
    return made


def first(draw: random.Random, pool: list[Any]) -> Any:
    """An object that only the script makes."""
    kind = draw.randrange(7)
    made: Any
    if kind == 0:
        made = closures(*(new(draw, pool) for _ in range(2)))[draw.randrange(2)]
        made.calls = 0
        return made
    if kind == 1:
        made = Slotted()
        made.a, made.rest = new(draw, pool), draw.choice(VALUES)
    elif kind == 2:
        made = Rows([new(draw, pool)])
        made.extra = draw.choice(VALUES)
    elif kind == 3:
        made = Counted()
        made.own = new(draw, pool)
    elif kind == 4:
        made = Locked()
        made.a = new(draw, pool)
    else:
        return new(draw, pool)
    return made


def tree(seed: int, size: int) -> Any:
    """The root of what a script makes, the same for the same numbers."""
    global TOTAL
    TOTAL, Counted.count, Counted.seen = 0, 0, []
    draw = random.Random(seed)
    pool: list[Any] = [Key(0)]
    for _ in range(size):
        pool.append(first(draw, pool))
    root: Any = Plain()
    root.all = pool[-3:]
    root.a = draw.choice(pool)
    for owner, key in slots(root):  # cycles
        if draw.random() < 0.1:
            put(owner, key, draw.choice(pool))
    return root


# What is in it ---------------------------------------------------------------------


def slots(root: Any) -> list[tuple[Any, Any]]:
    """Every place in which something can be put: its owner and its key."""
    found: list[tuple[Any, Any]] = []
    for owner in objects(root):
        if isinstance(owner, list | collections.deque):
            found += [(owner, index) for index in range(len(owner))]
        elif isinstance(owner, dict):
            found += [(owner, key) for key in owner]
        elif isinstance(owner, types.CellType):
            found.append((owner, None))
        if isinstance(owner, Counted):
            found += [(Counted, "count"), (Counted, "seen")]
        found += [(owner, name) for name in attributes(owner)]
    return found


def attributes(owner: Any) -> dict[str, Any]:
    if isinstance(owner, Slotted):
        return {n: getattr(owner, n) for n in Slotted.__slots__ if hasattr(owner, n)}
    if isinstance(owner, Plain | Locked | Counted | Rows):
        return {k: x for k, x in vars(owner).items() if k != "lock"}
    return {}


def put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, types.CellType):
        owner.cell_contents = value
    elif isinstance(owner, collections.Counter) and type(value) is not int:
        return
    elif isinstance(owner, list | dict | collections.deque) and not (
        isinstance(owner, Rows) and key == "extra"
    ):
        owner[key] = value
    elif owner is not Counted or not callable(value):  # which would be a method
        setattr(owner, key, value)


def get(owner: Any, key: Any) -> Any:
    if isinstance(owner, types.CellType):
        return owner.cell_contents
    return (
        getattr(owner, key)
        if isinstance(key, str) and not isinstance(owner, dict)
        else owner[key]
    )


def inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | collections.deque):
        yield from value
    elif isinstance(value, types.FunctionType):
        yield from value.__closure__ or ()
        yield tuple(sorted(vars(value).items()))
        yield value.__defaults__ or ()
        yield tuple((value.__kwdefaults__ or {}).values())
    elif isinstance(value, types.CellType):
        yield value.cell_contents
    if isinstance(value, Counted):
        yield from (Counted.count, Counted.seen)
    yield from attributes(value).values()


def objects(root: Any) -> list[Any]:
    """What can be reached from the root, each once, in the same order always."""
    found: dict[int, Any] = {}
    todo = [root]
    while todo:
        value = todo.pop()
        if id(value) not in found:
            found[id(value)] = value
            todo += reversed([*inner(value)])
    return list(found.values())


def picture(root: Any) -> list[Any]:
    """All content by the bit, each object with a number: the same if shared alike."""
    numbers: dict[int, int] = {}
    found: list[Any] = []
    todo: list[Any] = [root]

    def seen(value: Any) -> Any:
        if isinstance(value, tuple):
            return (type(value).__name__, *map(seen, value))
        kind = type(value)
        if isinstance(value, frozenset):
            return kind, sorted(map(repr, value))
        if kind in {type(x) for x in VALUES} - {tuple, Pair}:
            return kind, repr(value)
        if id(value) not in numbers:
            numbers[id(value)] = len(numbers)
            todo.append(value)
        return f"#{numbers[id(value)]}"

    seen(root)
    todo = [root]
    while todo:
        value = todo.pop(0)
        kind: Any = type(value)
        content: Any = None
        if isinstance(value, np.ndarray):
            content = value.dtype.str, value.shape, value.strides, value.tobytes()
        elif isinstance(value, random.Random):
            content = hash(value.getstate())
        elif isinstance(value, np.random.Generator):
            content = hash(str(value.bit_generator.state))
        elif isinstance(value, np.random.RandomState):
            content = hash(str(value.get_state(legacy=False)))
        elif isinstance(value, set):
            content = sorted(map(repr, value))
        elif isinstance(value, bytearray):
            content = bytes(value)
        elif isinstance(value, dict):
            factory = getattr(value, "default_factory", None)
            items = [(seen(key), seen(item)) for key, item in value.items()]
            content = factory, items
        elif isinstance(value, collections.deque):
            content = value.maxlen, [*map(seen, value)]
        elif isinstance(value, types.FunctionType):
            total = TOTAL if value.__name__ == "get" else None
            content = value.__name__, total, [*map(seen, inner(value))]
        elif isinstance(value, list | types.CellType | Counted):
            content = [*map(seen, inner(value))]
        names = sorted(attributes(value).items())
        found.append((kind, content, [(name, seen(item)) for name, item in names]))
    return found


# What training does ----------------------------------------------------------------


def change(root: Any, what: str, seed: int) -> None:
    global TOTAL
    draw = random.Random(seed)
    there = objects(root)
    places = slots(root)
    pool = [x for x in there if not isinstance(x, types.CellType)]
    owner, key = draw.choice(places)
    target = draw.choice(there)
    if what == "value":
        put(owner, key, draw.choice(VALUES))
    elif what == "new":
        put(owner, key, new(draw, pool))
    elif what == "swap":
        other, theirs = draw.choice(places)
        mine, yours = get(owner, key), get(other, theirs)
        put(owner, key, yours)
        put(other, theirs, mine)
    elif what == "alias":
        put(owner, key, draw.choice(pool))
    elif what == "inside":
        leaves = [x for x in there if is_leaf(x)]
        if leaves:
            change_leaf(draw.choice(leaves), draw)
    elif what == "total":
        TOTAL += 1
    elif isinstance(target, types.FunctionType):
        vars(target)["calls" if what == "less" else "more"] = draw.choice(pool)
    elif isinstance(target, collections.OrderedDict) and target and seed % 2:
        target.move_to_end(next(iter(target)))
    elif isinstance(target, Plain | Locked | Counted):
        names = list(attributes(target))
        if what == "more":
            setattr(target, draw.choice(NAMES), draw.choice([*VALUES, *pool]))
        elif names and target is not root:
            delattr(target, draw.choice(names))
    elif isinstance(target, list | collections.deque):
        if what == "more":
            target.append(draw.choice([*VALUES, *pool]))
        elif target:
            target.pop()
    elif isinstance(target, dict):
        if what == "more":
            put(target, draw.choice(["new", 7, "k"]), draw.choice([*VALUES, *pool, 3]))
        elif target:
            target.popitem()
    elif isinstance(target, Slotted):
        if what == "more":
            target.b = draw.choice(VALUES)
        elif hasattr(target, "b"):
            del target.b


def is_leaf(value: Any) -> bool:
    kinds = random.Random, np.random.Generator, np.random.RandomState, bytearray, set
    return isinstance(value, kinds) or (
        isinstance(value, np.ndarray) and value.size > 0
    )


def change_leaf(value: Any, draw: random.Random) -> None:
    if isinstance(value, random.Random | np.random.RandomState | np.random.Generator):
        value.random()
    elif isinstance(value, bytearray):
        value.append(draw.randrange(256))
    elif isinstance(value, set):
        value.symmetric_difference_update({"changed"})
    else:
        raw = value.reshape(-1)[:1].view(np.uint8) if value.flags.c_contiguous else None
        if raw is None or value.dtype.kind == "b":
            value[...] = np.roll(value, 1) if value.dtype.kind != "b" else ~value
        else:
            raw ^= 1


def started(root: Any) -> CallbackStates:
    callback = Holder(root)
    states = CallbackStates([callback])
    callback.on_train_begin()
    states.learn()
    return states


def saved(states: CallbackStates) -> tuple[Any, dict[str, np.ndarray]]:
    """A capture as the next process reads it."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(states.capture(arrays)[0])
    return json.loads(text), {name: item.copy() for name, item in arrays.items()}


def rebuilt(root: Any, state: Any, meanwhile: list[Any]) -> None:
    """Restore what was saved, after some other changes."""
    states = started(root)
    for each in meanwhile:
        change(root, *each)
    states.restore(*state)


WHAT = ("value", "new", "swap", "alias", "inside", "total", "more", "less")
SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 12)
CHANGES = st.lists(st.tuples(st.sampled_from(WHAT), SEEDS), max_size=6)
few = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@few
@given(SEEDS, SIZES, CHANGES, CHANGES)
def test_any_tree_comes_back_or_is_named(
    seed: int, size: int, done: list[Any], meanwhile: list[Any]
) -> None:
    root = tree(seed, size)
    before, states = picture(root), started(root)
    assert states.capture({})[0][0]["objects"] == {}
    for each in done:
        change(root, *each)
    expected, state = picture(root), saved(states)
    lost = states.uncaptured()

    root = tree(seed, size)
    assert picture(root) == before
    rebuilt(root, state, meanwhile)
    assert lost or picture(root) == expected


@few
@given(SEEDS, SIZES, SEEDS)
def test_one_changed_leaf_is_all_that_is_named(
    seed: int, size: int, which: int
) -> None:
    """It alone is saved: its attribute, its items or its content."""
    root = tree(seed, size)
    states = started(root)
    draw = random.Random(which)
    leaves = [each for each in objects(root) if is_leaf(each)]
    plain = [
        (owner, key)
        for owner, key in slots(root)
        if type(get(owner, key)) in (int, float) and isinstance(owner, Plain)
    ]
    if plain and (not leaves or draw.random() < 0.5):
        owner, key = draw.choice(plain)
        put(owner, key, "changed")
        expected: Any = {"attributes": {key: "changed"}}
    elif leaves:
        change_leaf(draw.choice(leaves), draw)
        expected = {"content": ANY}
    else:
        return
    (state,), _ = saved(states)
    assert list(state["objects"].values()) == [expected]
    assert states.uncaptured() == []


@few
@given(SEEDS, SIZES, SEEDS)
def test_one_thing_that_cannot_be_saved_is_all_that_is_named(
    seed: int, size: int, which: int
) -> None:
    """Everything else comes back."""
    root = tree(seed, size)
    states = started(root)
    draw = random.Random(which)
    root.a = [lambda: 0, iter([1]), threading.Lock(), closures(1, 2)[0]][which % 4]
    pool = [each for each in objects(root.all) if is_leaf(each)]
    if pool:
        change_leaf(draw.choice(pool), draw)
    root.b = pool
    kind = ["function", "list_iterator", "_thread.lock", "function"][which % 4]
    expected, state = picture([root.all, root.b]), saved(states)
    assert states.uncaptured() == [f"Holder.root.a ({kind})"]
    root = tree(seed, size)
    rebuilt(root, state, [])
    assert picture([root.all, root.b]) == expected


def with_view() -> Any:
    made: Any = Plain()
    made.a, made.bits = np.zeros(4), np.random.default_rng(0)
    made.items = [[1]]
    return made


def view(made: Any) -> None:
    made.b = made.a[:2]
    made.a += 1


def view_of_new(made: Any) -> None:
    made.list = [np.zeros(4)]
    made.b = made.list[0][:2]


def view_before_new(made: Any) -> None:
    new = np.zeros(4)
    made.b = new[:2]
    made.c = new


def same_bits(made: Any) -> None:
    made.b = np.random.Generator(made.bits.bit_generator)


def array_of_lists(made: Any) -> None:
    made.b = np.array([None, made.items], object)


def special_name(made: Any) -> None:
    vars(made)["__b__"] = 3


@pytest.mark.parametrize(
    ("share", "name"),
    [
        (view, "b (numpy.ndarray)"),
        (view_of_new, "b (numpy.ndarray)"),
        (view_before_new, "b (numpy.ndarray)"),
        (same_bits, "b (numpy.random._generator.Generator)"),
        (array_of_lists, "b (numpy.ndarray)"),
        (special_name, "__b__ (int)"),
    ],
)
def test_what_would_share_no_more_is_named(share: Any, name: str) -> None:
    """A new array that shares the memory of another would be one of its own."""
    root = with_view()
    states = started(root)
    share(root)
    states.capture({})
    assert states.uncaptured() == [f"Holder.root.{name}"]


def test_a_new_array_that_shares_nothing_comes_back() -> None:
    """Whatever made it; so does a part of an array that never changes."""
    root = with_view()
    states = started(root)
    root.b, root.c = np.arange(6.0).reshape(2, 3), root.a[1:]
    expected, state = picture(root), saved(states)
    assert states.uncaptured() == []
    root = with_view()
    rebuilt(root, state, [])
    assert picture(root) == expected


def test_objects_in_a_frozen_set_are_named_at_once() -> None:
    """They have no order in which another process would find them."""
    root: Any = Plain()
    root.a = frozenset({Plain()})
    root.b = frozenset({Side.LEFT, Key(1), Pair(1, 2), int, len})
    assert started(root).uncaptured() == ["Holder.root.a (frozenset)"]
