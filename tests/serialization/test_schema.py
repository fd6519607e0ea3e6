"""What a file may say is what a dataclass says."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from resilient.serialization.schema import SchemaError, from_json, parse, to_json

pytestmark = pytest.mark.once


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: Annotated[int, Meta(ge=0)]
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    way: Literal["fit", "loop"]
    inner: Inner | None
    counts: dict[str, int] = field(default_factory=dict)
    inners: list[Inner] = field(default_factory=list)
    anything: Any = None


def plain(**changes):
    return {"name": "a", "way": "fit", "inner": {"number": 1}} | changes


def test_what_is_written_is_read():
    made = Outer(name="a", way="loop", inner=Inner(number=3), counts={"x": 1})
    assert from_json(Outer, json.loads(json.dumps(to_json(made)))) == made
    none = Outer(name="a", way="fit", inner=None)
    assert from_json(Outer, to_json(none)) == none


def test_defaults_may_be_missing():
    assert from_json(Outer, plain()).inner == Inner(number=1, share=0.5)


def test_a_whole_number_is_a_share_too():
    assert from_json(Inner, {"number": 1, "share": 1}).share == 1


def test_what_a_later_version_added_is_left_out():
    assert from_json(Outer, plain(other=1)) == from_json(Outer, plain())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "Expected `object`, got `array`"),
        ({"name": "a", "way": "fit"}, "missing required field `inner`"),
        (plain(name=3), r"Expected `str`, got `int` - at `\$.name`"),
        (plain(way="run"), r"Invalid enum value 'run' - at `\$.way`"),
        (plain(inner=3), r"got `int` - at `\$.inner`"),
        (plain(inner={"number": True}), r"got `bool` - at `\$.inner.number`"),
        (plain(inner={"number": 1, "share": "x"}), r"Expected `float`, got `str`"),
        (plain(inner={"number": -1}), r">= 0 - at `\$.inner.number`"),
        (plain(counts={"x": "y"}), r"Expected `int`, got `str` - at `\$.counts"),
        (plain(counts=[]), r"Expected `object`, got `array` - at `\$.counts`"),
        (plain(inners=[{"number": 1.5}]), r"at `\$.inners\[0\].number`"),
    ],
)
def test_anything_else_is_refused_by_name(data, why):
    with pytest.raises(SchemaError, match=why):
        from_json(Outer, data)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[NaN]", b"\xff", b"[" * 100_000, b'{"a": 1e400}', b'["\\ud800"]'],
)
def test_only_strict_json_is_read(raw):
    with pytest.raises(SchemaError):
        parse(raw)
