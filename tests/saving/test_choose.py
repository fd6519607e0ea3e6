"""Which checkpoint is used, and what is said of those that are not."""

import os

import pytest
from support.checkpoint_samples import filled, holds

from resilient.errors import CheckpointNotFoundError
from resilient.policies import latest
from resilient.saving.choose import discard, find
from resilient.storage.store import Store
from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once


def step_of(checkpoint):
    return checkpoint.step


def test_who_falls_back_records_which_checkpoint_and_why(tmp_path):
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "run.json").unlink()
    checkpoint, read = find(store, "auto", step_of, Events(tmp_path))
    assert (checkpoint.step, read) == (10, 10)
    assert holds(checkpoint)
    (event,) = read_events(tmp_path)
    assert event["event"] == "fell back"
    assert event["checkpoint"] == "step-00000020"
    assert event["reason"] == "run.json is missing"


def gone(directory, *events):
    """A directory whose events tell this, and nothing else does."""
    for event in events:
        Events(directory).emit(event, step=10)
    return Store(directory), Events(directory)


@pytest.mark.parametrize("events", [["saved"], ["started over", "restored"]])
def test_a_run_whose_checkpoints_are_gone_starts_anew_only_if_it_is_told_to(
    tmp_path, events
):
    """However often it is tried; and that it was told once is enough."""
    store, log = gone(tmp_path, *events)
    for _ in range(2):
        with pytest.raises(CheckpointNotFoundError, match=r'has saved[^$]*"never"'):
            find(store, "auto", step_of, log)
    assert find(store, "never", step_of, log) is None
    discard(store, "never", log)
    assert find(store, "auto", step_of, log) is None


@pytest.mark.parametrize(
    "content", [bytes(500), b'{\n "time": 1\n}\n', b"\xff\xfe{\0", b"saved\n"]
)
def test_events_that_are_none_may_have_told_of_saves(tmp_path, content):
    (tmp_path / "events.jsonl").write_bytes(content)
    store, log = gone(tmp_path, "started")
    with pytest.raises(CheckpointNotFoundError, match="unreadable lines"):
        find(store, "auto", step_of, log)
    discard(store, "never", log)
    assert find(store, "auto", step_of, log) is None


@pytest.mark.parametrize("torn", [b"{", b'{"time": 17', b'{"time": 1, "eve'])
def test_an_event_that_a_kill_has_torn_tells_of_nothing(tmp_path, torn):
    (tmp_path / "events.jsonl").write_bytes(torn)
    store, log = gone(tmp_path, "started")
    assert find(store, "auto", step_of, log) is None


@pytest.mark.parametrize(
    "events", [[], ["started", "save failed"], ["saved", "started over", "started"]]
)
def test_a_run_that_has_not_saved_starts(tmp_path, events):
    store, log = gone(tmp_path, *events)
    assert find(store, "auto", step_of, log) is None
    discard(store, "never", log)
    assert [event["event"] for event in read_events(tmp_path)] == events


def test_a_run_that_pruned_resumes(tmp_path):
    store = filled(tmp_path, 10, 20)
    log = gone(tmp_path, "saved", "saved")[1]
    store.prune(latest(1))
    assert find(store, "auto", step_of, log)[1] == 20


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_where_nobody_can_tell_nothing_starts_anew_by_itself(tmp_path, make):
    make(tmp_path / "events.jsonl")
    store, log = Store(tmp_path), Events(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"events.jsonl cannot be read"):
        find(store, "auto", step_of, log)
    assert find(store, "never", step_of, log) is None
    discard(store, "never", log)
