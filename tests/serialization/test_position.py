"""What the position of data is in a process of another backend."""

import pytest

from resilient.serialization.position import DataPosition, made_by

pytestmark = pytest.mark.once


def pipeline(**fields):
    source = {"seeds": [], "lasting": {}, "state": b"", "begun": {}, "first": "one"}
    return DataPosition(source=source, **fields)


def test_what_tensorflow_trained_of_a_pipeline_is_what_it_gave():
    found = pipeline(drawn=3, last="two").drawn_by("tensorflow")
    assert found.given == 3
    assert "state" in found.source
    assert pipeline(drawn=0).drawn_by("tensorflow").given is None


def test_a_pipeline_that_was_drawn_ahead_begins_again():
    """The state is that of later batches."""
    position = pipeline(drawn=3, given=5, pending=["four", "five"])
    found = position.drawn_by("jax")
    assert (found.given, found.pending) == (5, ["four", "five"])
    assert "state" not in found.source
    assert "state" in position.source


def test_checksums_of_a_pipeline_tell_who_made_them_for_good():
    found = pipeline(drawn=3, last="two").drawn_by("tensorflow").drawn_by("torch")
    assert made_by(found.last) == ("tensorflow", "two")
    assert made_by(found.source["first"]) == ("tensorflow", "one")
    assert made_by("two") == ("", "two")


def test_other_data_has_the_same_position():
    position = DataPosition(drawn=3, source={"kind": "generator"}, last="two")
    assert position.drawn_by("torch") is position
