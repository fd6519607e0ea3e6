"""What a file may say is what a dataclass says."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from resilient.serialization.schema import SchemaError, from_json, to_json

pytestmark = pytest.mark.once


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
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


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "Outer is not an object"),
        (plain(other=1), "other is not known"),
        ({"name": "a", "way": "fit"}, "inner is missing"),
        (plain(name=3), "name is a int, not str"),
        (plain(way="run"), "way is a str"),
        (plain(inner=3), "inner. is not an object"),
        (plain(inner={"number": True}), "inner.number is a bool, not int"),
        (plain(inner={"number": 1, "share": "x"}), "inner.share is a str, not float"),
        (plain(inner={"number": 1, "more": 2}), "inner.more is not known"),
        (plain(counts={"x": "y"}), "counts.x is a str, not int"),
        (plain(counts=[]), "counts is a list"),
        (plain(inners=[{"number": 1.5}]), r"inners\[\].number is a float, not int"),
    ],
)
def test_anything_else_is_refused_by_name(data, why):
    with pytest.raises(SchemaError, match=why):
        from_json(Outer, data)
