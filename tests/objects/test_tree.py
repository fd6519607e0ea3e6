"""Any changes to any objects: restored in another process they look the same.

The same means equal and shared alike: what was one object is one object again, and what
the script made is still what the script made.
"""

import gc
import itertools
import json
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from resilient.errors import CorruptCheckpointError, NotExactWarning
from resilient.objects.attributes import Attributes
from resilient.once import forget
from resilient.serialization.json_values import decode, encode

NAMES = ("a", "b", "c")
NODES = 4


class Node:
    """A plain object that cannot be made anew from a checkpoint."""

    def __init__(self, number: int) -> None:
        self.lock = threading.Lock()
        self.a: Any = [number]
        self.b: Any = np.full(3, number)
        self.c: Any = None


def graph() -> list[Node]:
    """What a script makes: nodes that refer to one another and share a list."""
    nodes = [Node(number) for number in range(NODES)]
    for node, after in itertools.pairwise(nodes):
        node.c = after
    nodes[1].a = nodes[0].a
    nodes[-1].c = [nodes[0], threading.Lock()]
    return nodes


node = st.integers(0, NODES - 1)
name = st.sampled_from(NAMES)
change = st.one_of(
    st.tuples(st.just("number"), node, name, st.integers(0, 9)),
    st.tuples(st.just("list"), node, name, st.integers(0, 9)),
    st.tuples(st.just("array"), node, name, st.integers(0, 9)),
    st.tuples(st.just("node"), node, name, node),
    st.tuples(st.just("same"), node, name, st.tuples(node, name)),
    st.tuples(st.just("in place"), node, name, st.integers(0, 9)),
    st.tuples(st.just("delete"), node, name, st.none()),
)
changes = st.lists(change, max_size=8)


def apply(nodes: list[Node], done: list[Any]) -> None:
    for what, index, key, value in done:
        owner = nodes[index]
        now = getattr(owner, key, None)
        if what == "number":
            setattr(owner, key, value)
        elif what == "list":
            setattr(owner, key, [value])
        elif what == "array":
            setattr(owner, key, np.full(3, value))
        elif what == "node":
            setattr(owner, key, nodes[value])
        elif what == "same":
            other, theirs = value
            setattr(owner, key, getattr(nodes[other], theirs, None))
        elif what == "in place" and type(now) is list and type(now[0]) is int:
            now.append(value)
        elif what == "in place" and isinstance(now, np.ndarray):
            now += value
        elif what == "delete" and hasattr(owner, key):
            delattr(owner, key)


def picture(nodes: list[Node]) -> Any:
    """All content, each object with a number: equal pictures are shared alike."""
    numbers: dict[int, int] = {}

    def draw(value: Any) -> Any:
        if not isinstance(value, Node | list | np.ndarray):
            return (
                type(value).__name__ if type(value) is type(threading.Lock()) else value
            )
        if id(value) in numbers:
            return f"#{numbers[id(value)]}"
        numbers[id(value)] = number = len(numbers)
        if isinstance(value, np.ndarray):
            return number, "array", value.tolist()
        if isinstance(value, list):
            return number, [draw(item) for item in value]
        return number, {key: draw(item) for key, item in sorted(vars(value).items())}

    return [draw(each) for each in nodes]


def through_json(state: Any) -> Any:
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(encode(state, arrays, "state"))
    return decode(json.loads(text), {k: array.copy() for k, array in arrays.items()})


@settings(max_examples=150, deadline=None)
@given(before=changes, after=changes, meanwhile=changes)
@example(
    before=[("same", 0, "a", (2, "a")), ("list", 2, "a", 2)], after=[], meanwhile=[]
)  # a list that moved, and an equal one in its place
def test_any_changes_come_back(
    before: list[Any], after: list[Any], meanwhile: list[Any]
) -> None:
    first, second = graph(), graph()
    tracker, again = (Attributes({"x": nodes[0]}) for nodes in (first, second))
    apply(first, before)
    state = through_json(tracker.capture())
    expected = picture(first)
    made = {id(each) for each in second}

    again.restore(state)
    assert picture(second) == expected
    apply(second, meanwhile)
    again.restore(state)
    assert picture(second) == expected
    assert {id(each) for each in second} == made

    tracker.restore(state)  # nothing to do
    assert picture(first) == expected
    apply(first, after)
    tracker.restore(state)
    assert picture(first) == expected


def test_a_list_that_is_a_root_keeps_its_items() -> None:
    """Such as the dataset of a torch ``DataLoader``."""
    rows = [np.zeros(2), np.ones(2)]
    tracker = Attributes({"dataset": rows})
    tracker.restore(through_json(tracker.capture()))
    assert len(rows) == 2


def test_what_was_replaced_is_the_same_object_again() -> None:
    """Others may refer to it, of whom we do not know."""
    node = Node(1)
    made = node.a
    tracker = Attributes({"x": node})
    state = through_json(tracker.capture())
    made.append(2)
    node.a = [1]
    tracker.restore(state)
    assert node.a is made
    assert made == [1]


def test_a_change_to_what_is_nobodys_is_named() -> None:
    """Whether the script or the checkpoint has another object."""
    attributes = Attributes({"x": Node(1)})
    entry = {"attributes": {"a": encode(3, {}, "v")}}
    with pytest.warns(NotExactWarning, match=r"\n  y$"):
        attributes.restore({"objects": {"y": entry}})


class Rows:
    def __init__(self):
        self.rows = [str(number) for number in range(20_000)]
        self.items = [object(), object()]
        self.key = None


@pytest.mark.parametrize(
    ("home", "entry"),
    [
        ("x.rows", {"content": ["long", np.zeros(20_000, np.int64)]}),
        ("x.rows", {"content": ["long", np.arange(20_000.0)]}),
        ("x.rows", {"content": ["long", "ab"]}),
        ("x.rows", {"content": ["long", 3]}),
        ("x.items", {"items": 3}),
        ("x.items+", {"made": ["nothing", None]}),
        ("x.key+", {"made": ["key", 3]}),
        ("x.key+", {"made": ["key", ["no generator", np.zeros(2, np.uint32)]]}),
        ("x.key+", {"made": ["dict", None], "items": [1]}),
    ],
)
def test_what_was_never_saved_is_an_error_that_says_so(home, entry):
    arrays: dict[str, np.ndarray] = {}
    for key in ("content", "made"):
        if key in entry:
            kind, plain = entry[key]
            entry[key] = kind, encode(plain, arrays, "v")
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        Attributes({"x": Rows()}).restore({"objects": {home: entry}, "arrays": arrays})


class Holder:
    """A plain object."""

    def __init__(self) -> None:
        self.before: Any = None


def test_an_attribute_of_none_that_gave_way_to_another_is_a_change():
    holder = Holder()
    attributes = Attributes({"holder": holder})
    del holder.before
    holder.after = None
    state = attributes.capture()["objects"]["holder"]
    assert state == {"attributes": {"after": None}, "gone": ["before"]}


def test_no_class_is_kept_alive_once_training_is_over():
    class Local(Holder):
        def large(self) -> int:
            return len(content)

    content = np.zeros(9)
    Attributes({"local": Local()}).capture()
    found = weakref.ref(Local)
    del Local
    forget()
    gc.collect()
    assert found() is None
