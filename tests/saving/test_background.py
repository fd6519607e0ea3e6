"""While a checkpoint is being written: what is due, what waits, who hears of errors."""

import logging
import threading

import pytest
from test_checkpointer import Clock, FakeStore, at, snapshot

from resilient import CheckpointWriteError, best, every, latest
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.writer import Committer
from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once


class SlowStore(FakeStore):
    """Commits when it is told to."""

    def __init__(self):
        super().__init__(Clock())
        self.go = threading.Event()
        self.begun = threading.Event()
        self.threads = []

    def commit(self, *args, **kwargs):
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.go.wait(60)
        return super().commit(*args, **kwargs)


@pytest.fixture
def store():
    store = SlowStore()
    yield store
    store.go.set()


@pytest.fixture
def make(store, tmp_path):
    made = []

    def make(policy=None, *, keep=None, on_error="raise", on_event=None):
        made.append(
            Checkpointer(
                Committer(store, keep or latest(3), Events(tmp_path, on_event), {}),
                policy=policy or every(steps=1),
                on_error=on_error,
            )
        )
        return made[-1]

    yield make
    store.go.set()
    for each in made:
        each.__exit__(None, None)  # other tests count threads


def begin(saving, step, **given):
    """Start a save, and return when it is under way."""
    store = saving._committer.store
    store.begun.clear()
    taken = snapshot(at(step), **given)
    assert saving.ready_to_save(at(step))
    saving.submit(taken)
    assert store.begun.wait(60)
    return taken.tensors


def end(saving):
    saving._committer.store.go.set()
    saving.wait()


def committed(store):
    return [step for step, *_ in store.commits]


def test_training_goes_on_while_one_thread_writes(make, store):
    """It keeps what it writes until that is written."""
    with make() as saving:
        tensors = begin(saving, 1)
        assert (committed(store), tensors.released) == ([], False)
        end(saving)
        assert (committed(store), tensors.released) == ([1], True)
        begin(saving, 2)
    first, second = store.threads
    assert first is second is not threading.main_thread()
    assert first.name.startswith("resilient-writer")
    assert not first.is_alive()


def test_one_snapshot_is_in_flight_and_what_is_due_meanwhile_comes_later(
    make, store, tmp_path
):
    """Saves are spaced out, which is said once."""
    with make() as saving:
        begin(saving, 1)
        assert not saving.ready_to_save(at(2))
        assert not saving.ready_to_save(at(3))
        end(saving)
        store.go.clear()
        begin(saving, 4)
        assert not saving.ready_to_save(at(5))
        store.go.set()
    named = [e for e in read_events(tmp_path) if e["event"] == "spaced out"]
    assert [event["step"] for event in named] == [2]


def test_a_write_lets_training_get_ahead_unless_somebody_waits_for_it(
    make, store, tmp_path, monkeypatch
):
    """A device that was told of steps ahead of time has caught up at a snapshot."""
    monkeypatch.setattr("resilient.saving.checkpointer._HEAD_START", 3600)
    store.go.set()
    saving = make()
    with saving:
        saving._last_now = -1e6
        assert saving.ready_to_save(at(1))
        saving.submit(snapshot(at(1)))
        assert not store.begun.wait(0.2)
        saving.wait()
        assert committed(store) == [1]
        saving._last_now = -1e6
        saving.submit(snapshot(at(2)))
        store.begun.clear()
        assert not saving.ready_to_save(at(3))
        assert store.begun.wait(60)  # two are due: the disk is to be fast now
        saving.wait()
        saving._last_now = -1e6
        saving.submit(snapshot(at(4)))
    assert committed(store) == [1, 2, 4]


def test_a_request_waits_for_its_turn(make, store):
    with make(every(steps=1000)) as saving:
        saving.request()
        begin(saving, 1)
        saving.request()
        assert not saving.ready_to_save(at(2))
        end(saving)
        assert saving.ready_to_save(at(3))


def test_the_end_of_a_run_is_waited_for(make, store):
    with make() as saving:
        begin(saving, 1)
        threading.Timer(0.2, store.go.set).start()
        assert saving.ready_to_save(at(10), must=True)
        assert committed(store) == [1]
        store.go.clear()
        threading.Timer(0.2, store.go.set).start()
        saving.submit(snapshot(at(10), finished=True))
        assert committed(store) == [1, 10]


def test_ends_of_epochs_are_waited_for_where_the_best_is_kept(make, store):
    """Else the best epoch might be the one that was left out."""
    with make(keep=best(1, "loss")) as saving:
        begin(saving, 8)
        assert not saving.ready_to_save(at(9))
        threading.Timer(0.2, store.go.set).start()
        assert saving.ready_to_save(at(10))
        assert committed(store) == [8]


def failing(store):
    store.fails = [CheckpointWriteError("The disk is full.")]
    return store


def test_an_error_surfaces_at_the_next_batch(make, store):
    with make(every(steps=5)) as saving:
        failing(store)
        begin(saving, 5)
        assert not saving.ready_to_save(at(6))
        store.go.set()
        saving._writer._job.exception()
        with pytest.raises(CheckpointWriteError, match="disk is full"):
            saving.ready_to_save(at(7))
        assert not saving.ready_to_save(at(8))
        begin(saving, 10)
    assert committed(store) == [10]


def test_an_error_surfaces_at_the_end_at_the_latest(make, store):
    failing(store)
    store.go.set()
    with pytest.raises(CheckpointWriteError, match="disk is full"), make() as saving:
        begin(saving, 1)


def test_an_error_may_be_a_warning_in_the_log(make, store, caplog):
    failing(store)
    store.go.set()
    with make(on_error="warn") as saving, caplog.at_level(logging.WARNING, "resilient"):
        begin(saving, 1)
        saving._writer._job.exception()
        assert saving.ready_to_save(at(2))
        begin(saving, 3)
    assert committed(store) == [3]
    assert caplog.text.count("Training continues: The disk is full.") == 1


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_bug_in_the_writer_surfaces_always(make, store, on_error):
    store.fails = [KeyError("bug")]
    store.go.set()
    with pytest.raises(KeyError, match="bug"), make(on_error=on_error) as saving:
        begin(saving, 1)


def train_into_a_bug(make):
    with make() as saving:
        begin(saving, 1)
        raise ZeroDivisionError


def test_a_users_error_is_not_replaced_and_the_write_ends_all_the_same(make, store):
    threading.Timer(0.2, store.go.set).start()
    with pytest.raises(ZeroDivisionError) as raised:
        train_into_a_bug(make)
    assert committed(store) == [1]
    assert not hasattr(raised.value, "__notes__")


def test_a_users_error_has_a_note_if_the_write_failed_besides(make, store):
    failing(store)
    store.go.set()
    with pytest.raises(ZeroDivisionError) as raised:
        train_into_a_bug(make)
    (note,) = raised.value.__notes__
    assert note == "In addition, CheckpointWriteError: The disk is full."


def test_events_are_recorded_at_once_and_told_on_the_training_thread(
    make, store, tmp_path
):
    """``on_event`` is the user's code, which need not be safe on another thread."""
    told = []

    def on_event(event):
        told.append((event["event"], event.get("step"), threading.current_thread()))

    with make(on_event=on_event) as saving:
        begin(saving, 1)
        store.go.set()
        saving._writer._job.exception()
        assert [event["event"] for event in read_events(tmp_path)] == ["saved"]
        assert told == []
        saving.ready_to_save(at(1))
        assert told == [("saved", 1, threading.main_thread())]
