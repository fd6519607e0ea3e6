"""What somebody else wrote in the place of an encoded value runs nothing."""

import collections
import enum
import os
import sys

import numpy as np
import pytest

from resilient import CheckpointMismatchError, CorruptCheckpointError
from resilient.serialization.classes import Known
from resilient.serialization.json_values import decode, encode

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
    "an enumeration that is a function": tagged("enum", ["os:system", [COMMAND]]),
    "a named tuple that is a module": tagged("namedtuple", ["os:path", [1]]),
    "a function": reference("os:system"),
    "a built-in": reference("builtins:eval"),
    "our own": reference("resilient.serialization.json_values:decode"),
    "dots": reference(f"{HERE}:Plain.method.__globals__"),
    "an object": tagged("object", ["subprocess:Popen", mapping()]),
    "a class of tests": tagged("object", [f"{HERE}:Other", mapping()]),
    "a factory": tagged("defaultdict", [reference("os:system"), mapping()]),
}


@pytest.mark.parametrize("data", REFERENCES.values(), ids=REFERENCES.keys())
def test_no_name_is_looked_up(data):
    before = set(sys.modules)
    for value in (data, [data], tagged("dict", [["k", data]])):
        with pytest.raises(CheckpointMismatchError, match="not have in the same place"):
            decode(value, {}, known())
    assert set(sys.modules) == before


MISUSED = {
    "an enumeration that is none": tagged("enum", ["builtins:int", [3]]),
    "a function of the script called": tagged("enum", ["posix:getcwd", [3]]),
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
}


@pytest.mark.parametrize("data", MISUSED.values(), ids=MISUSED.keys())
def test_what_is_known_is_not_used_as_something_else(data):
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        decode(data, {}, known())


def test_the_users_code_is_not_called():
    made = decode(tagged("object", [PLAIN, mapping(x=3)]), {}, known())
    assert vars(made) == {"x": 3}
    with pytest.raises(CheckpointMismatchError, match="a member of"):
        decode(tagged("enum", [f"{HERE}:Colour", [2]]), {}, known())
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


MALFORMED = {
    "no value": {"!": "int"},
    "a tag that is no text": {"!": ["int"], "v": 1},
    "an object of JSON": {"a": 1},
    "an unknown tag": tagged("later", 1),
    "an integer of a list": tagged("int", [1]),
    "no hexadecimal": tagged("float", "zz"),
    "a dict of triples": tagged("dict", [[1, 2, 3]]),
    "a key that cannot be one": tagged("dict", [[[1], 2]]),
    "a date that is none": tagged("date", [2026, 13, 1]),
    "a time zone by its name": tagged("ZoneInfo", ["Europe/Paris"]),
    "a state without a kind": tagged("RandomState", {}),
    "a state of another module": tagged("RandomState", mapping(bit_generator="os")),
    "an array without a shape": tagged("array", {"dtype": "<f8", "base64": ""}),
    "terabytes": array(shape=[2**40]),
    "objects of Python": array(dtype="O"),
    "objects within": array(dtype="[('a', 'O')]"),
    "a dtype that is code": array(dtype="(__import__('os').system('true'))"),
    "no dtype": array(dtype=None),
    "an array that is missing": beside("x"),
    "more objects than a shape": tagged("objects", [[2**40], [1]]),
    "nested for ever": nested(5000),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_anything_else_is_an_error_that_says_so(data):
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        decode(data, {}, known())


def test_that_memory_is_short_says_nothing_of_a_value(monkeypatch):
    def short(*_, **__):
        raise MemoryError

    encoded = encode(np.arange(3), {}, "x")
    monkeypatch.setattr("resilient.serialization.json_arrays.decode_array", short)
    with pytest.raises(MemoryError):
        decode(encoded, {})
