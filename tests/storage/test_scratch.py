"""Where the runs of a process go that is told to use a scratch directory."""

import os

import pytest

from resilient.storage import scratch, stores

pytestmark = pytest.mark.once


@pytest.fixture
def told(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, value in scratch.environment(tmp_path / "scratch").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "scratch"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("runs/a", "runs/a"),
        ("./runs/../runs/a", "runs/a"),
        ("../aside", None),
        ("/elsewhere/a", "_/elsewhere/a"),
        ("s3://bucket/run", "s3/bucket/run"),
        ("gs://bucket/../run/", "gs/bucket/run"),
    ],
)
def test_each_directory_has_its_own_place(told, given, expected):
    if expected is None:
        expected = f"_{told.parent}/aside"
    found = scratch.instead_of(given)
    assert found == str(told / expected)
    assert scratch.instead_of(found) == found
    assert stores.store_of(given).directory == told / expected
    assert stores.local_path(given) == told / expected


def test_a_script_may_change_its_directory(told, monkeypatch):
    """Its directories are told apart, and each keeps its place."""
    whole = scratch.instead_of(told.parent / "here/a/runs")
    found = [scratch.instead_of("runs")]
    for name in ("a", "b"):
        (told.parent / "here" / name).mkdir()
        monkeypatch.chdir(told.parent / "here" / name)
        found.append(scratch.instead_of("runs"))
    assert found == [str(told / each) for each in ("runs", "a/runs", "b/runs")]
    assert found[1] == whole


def test_what_is_no_directory_is_refused_as_ever(told):
    for wrong, error in ((" ", ValueError), ("a\0b", ValueError), (3, TypeError)):
        assert scratch.instead_of(wrong) is wrong
        with pytest.raises(error):
            stores.store_of(wrong)


def test_what_was_not_written_there_is_read_where_it_is(told):
    assert scratch.read_instead_of("runs/a") == "runs/a"
    with stores.open_readonly("runs/a") as store:
        assert store.directory == told.parent / "here/runs/a"
    os.makedirs(told / "runs/a")
    assert scratch.read_instead_of("runs/a") == str(told / "runs/a")
    with stores.open_readonly("runs/a") as store:
        assert store.directory == told / "runs/a"


def test_without_it_nothing_changes(tmp_path, monkeypatch):
    monkeypatch.delenv(scratch.VARIABLE, raising=False)
    assert scratch.instead_of("runs/a") == "runs/a"
    assert not scratch.in_effect()
