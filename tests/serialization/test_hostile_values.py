"""What somebody else wrote in the place of an encoded value runs nothing."""

import base64
import collections
import enum
import os
import sys
import tracemalloc

import numpy as np
import pytest

from resilient import CheckpointMismatchError, CorruptCheckpointError
from resilient.serialization import rng
from resilient.serialization.classes import Known
from resilient.serialization.decoding import check, decode
from resilient.serialization.json_values import encode

pytestmark = pytest.mark.once


class Colour(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value):
        raise AssertionError("the user's code was called")


class Plain:
    def __setattr__(self, name, value):
        raise AssertionError("the user's code was called")

    def method(self):
        return 1


Point = collections.namedtuple("Point", "x y")


def known():
    found = Known()
    encode([Colour.RED, Point(1, 2), Plain(), os.getcwd], {}, "v", found)
    return found.close()


def tagged(tag, content):
    return {"!": tag, "v": content}


def mapping(**items):
    return tagged("dict", [list(pair) for pair in items.items()])


def reference(name):
    return tagged("import", name)


HERE = __name__
COMMAND = f"touch {os.devnull}"
PLAIN = f"{HERE}:Plain"
REFERENCES = {
    "an enumeration that is a function": tagged("enum", ["os:system", COMMAND]),
    "a named tuple that is a module": tagged("namedtuple", ["os:path", [1]]),
    "a function": reference("os:system"),
    "a built-in": reference("builtins:eval"),
    "our own": reference("resilient.serialization.decoding:decode"),
    "dots": reference(f"{HERE}:Plain.method.__globals__"),
    "an object": tagged("object", ["subprocess:Popen", mapping()]),
    "a class of tests": tagged("object", [f"{HERE}:Other", mapping()]),
    "a factory": tagged("defaultdict", [reference("os:system"), mapping()]),
}


@pytest.mark.parametrize("data", REFERENCES.values(), ids=REFERENCES.keys())
def test_no_name_is_looked_up(data):
    check(data, {})  # only the script says what it holds
    before = set(sys.modules)
    for value in (data, [data], tagged("dict", [["k", data]])):
        with pytest.raises(CheckpointMismatchError, match="not have in the same place"):
            decode(value, {}, known())
    assert set(sys.modules) == before


MISUSED = {
    "an enumeration that is none": tagged("enum", ["builtins:int", 3]),
    "a function of the script called": tagged("enum", ["posix:getcwd", 3]),
    "a function as a named tuple": tagged("namedtuple", ["posix:getcwd", [1, 2]]),
    "a library's class made": tagged("object", ["numpy:ndarray", mapping()]),
    "another class": tagged(
        "object",
        [
            PLAIN,
            tagged("dict", [["__class__", reference("builtins:dict")]]),
        ],
    ),
    "attributes all at once": tagged(
        "object", [PLAIN, tagged("dict", [["__dict__", mapping()]])]
    ),
    "attributes without names": tagged("object", [PLAIN, tagged("dict", [[3, 4]])]),
    "an object of a list": tagged("object", [PLAIN, [1]]),
    "a factory that is data": tagged("defaultdict", [3, mapping()]),
    "a text as a function": tagged("import", ["os", "system"]),
}


@pytest.mark.parametrize("data", MISUSED.values(), ids=MISUSED.keys())
def test_what_is_known_is_not_used_as_something_else(data):
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        decode(data, {}, known())


def test_the_users_code_is_not_called():
    made = decode(tagged("object", [PLAIN, mapping(x=3)]), {}, known())
    assert vars(made) == {"x": 3}
    with pytest.raises(CheckpointMismatchError, match="a member of"):
        decode(tagged("enum", [f"{HERE}:Colour", 2]), {}, known())
    with pytest.raises(CheckpointMismatchError, match="with 3 fields"):
        decode(tagged("namedtuple", [f"{HERE}:Point", [1, 2, 3]]), {}, known())


def array(tag="array", **changes):
    plain = {"dtype": "<f8", "shape": [1], "base64": "AAAAAAAAAAA="}
    return tagged(tag, plain | changes)


def beside(name):
    return tagged("array", {"dtype": "<f8", "shape": [9], "array": name})


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


SEEDED = rng.state(np.random.default_rng(1))
SEEDS = {"entropy": 1, "spawn_key": [], "n_children_spawned": 0}
WORDS = {"key": {"dtype": "O", "base64": ""}, "pos": 1}
COLLIDING = [tagged("int", hex((2**61 - 1) * number)) for number in range(1, 2000)]
MALFORMED = {
    "no value": {"!": "int"},
    "a tag that is no text": {"!": ["int"], "v": 1},
    "more than a tag": {"!": "int", "v": "1", "w": 2},
    "an object of JSON": {"a": 1},
    "an unknown tag": tagged("later", 1),
    "an integer of a list": tagged("int", [1]),
    "a float too long": tagged("float", "00" * 9),
    "no hexadecimal": tagged("float", "zz"),
    "no base64": tagged("bytes", "*"),
    "half a character": tagged("str", base64.b64encode(b"abc").decode()),
    "a list of a text": tagged("list", "abc"),
    "a list of a list": tagged("list", [1, 2]),
    "a list of bytes": tagged("list", array(dtype="|u1", shape=[8])),
    "a dict of a number": tagged("dict", 3),
    "a dict of triples": tagged("dict", [[1, 2, 3]]),
    "a key that cannot be one": tagged("dict", [[[1], 2]]),
    "a set of lists": tagged("set", [[1]]),
    "a tuple of a number": tagged("tuple", 3),
    "a complex number of texts": tagged("complex", ["1", "2"]),
    "a complex number of one": tagged("complex", [1.0]),
    "a date of floats": tagged("date", [2026.0, 1, 1]),
    "a date that is none": tagged("date", [2026, 13, 1]),
    "a time zone by its name": tagged("ZoneInfo", ["Europe/Paris"]),
    "a decimal that is none": tagged("Decimal", ["x"]),
    "a fraction by zero": tagged("Fraction", [1, 0]),
    "a deque of a number": tagged("deque", [3, None]),
    "a deque shorter than nothing": tagged("deque", [[], -1]),
    "a counter of a list": tagged("Counter", [[1]]),
    "a generator of a number": tagged("Generator", [3]),
    "a state without a kind": tagged("RandomState", [{}]),
    "a state of another module": tagged("RandomState", [{"bit_generator": "os"}]),
    "a state of nothing": tagged("PCG64", [{"state": {}, "seeds": None}]),
    "words of objects": tagged(
        "MT19937",
        [{"state": {"bit_generator": "MT19937", "state": WORDS}, "seeds": None}],
    ),
    "a pool of terabytes": tagged(
        "PCG64", [SEEDED | {"seeds": SEEDS | {"pool_size": 2**40}}]
    ),
    "an array of a number": tagged("array", 3),
    "an array without a shape": tagged("array", {"dtype": "<f8", "base64": ""}),
    "terabytes": array(shape=[2**40]),
    "a shape beyond all": array(shape=[2**62, 2**62]),
    "a shape below zero": array(shape=[-1]),
    "a shape of floats": array(shape=[1.0]),
    "a shape of True": array(shape=[True]),
    "too many dimensions": array(shape=[1] * 65),
    "objects of Python": array(dtype="O"),
    "objects within": array(dtype="[('a', 'O')]"),
    "a dtype that is code": array(dtype="(__import__('os').system('true'))"),
    "a dtype too deep": array(dtype="[" * 60_000),
    "a dtype too long": array(dtype="[" * 10_000_000),
    "no dtype": array(dtype=None),
    "an array that is missing": beside("x"),
    "an array of no name": beside([]),
    "a scalar with a dimension": array("scalar"),
    "more objects than a shape": tagged("objects", [[2**40], [1]]),
    "objects of no shape": tagged("objects", [None, [1]]),
    "a dtype of a number": tagged("dtype", 3),
    "a tensor of a number": tagged("tensor", ["float32", 3]),
    "nested for ever": nested(5000),
    "an int that takes long": tagged("int", "0x1" + "0" * 20_000),
    "a set that takes long": tagged("set", COLLIDING),
    "a dict that takes long": tagged("dict", [[each, 1] for each in COLLIDING]),
    "a billion items of no bytes": tagged(
        "list", tagged("array", {"dtype": "|V0", "shape": [2**30], "base64": ""})
    ),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_anything_else_is_an_error_that_says_so(data):
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match="malformed"):
            decode(data, {}, known())
        if isinstance(data, dict) and data.keys() == {"!", "v"}:  # "!" may be a name
            with pytest.raises(CorruptCheckpointError, match="malformed"):
                check({"somewhere": [data]}, {})
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_an_array_is_not_larger_than_its_bytes():
    stretched = np.broadcast_to(np.zeros((), np.uint8), (2**40,))
    data = tagged("array", {"dtype": "|u1", "shape": [1000], "array": "x"})
    with pytest.raises(CorruptCheckpointError, match="bytes where 1000 are expected"):
        decode(data, {"x": stretched})


def test_an_array_is_referred_to_once():
    """Each time is a copy."""
    data, arrays = beside("x"), {"x": np.zeros(9)}
    check({"a": [data], "b": 3}, arrays)
    with pytest.raises(CorruptCheckpointError, match="'x' is missing"):
        check({"a": [data], "b": [data]}, arrays)


def test_what_a_script_has_often_may_be_in_a_set():
    """While the rest is checked, all that it has are alike."""
    check(tagged("set", [tagged("import", PLAIN)] * 2000), {})


def test_that_memory_is_short_says_nothing_of_a_value(monkeypatch):
    def short(*_, **__):
        raise MemoryError

    encoded = encode(np.arange(3), {}, "x")
    monkeypatch.setattr("resilient.serialization.json_arrays.decode_array", short)
    with pytest.raises(MemoryError):
        decode(encoded, {})
