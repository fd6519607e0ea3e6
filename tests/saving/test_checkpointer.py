"""When a checkpoint is due, what surrounds a commit, and what if it fails.

What happens while one is being written is in ``test_background.py``.
"""

import itertools
import logging
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from resilient import CheckpointWriteError, adaptive, best, every, latest
from resilient.progress import Progress
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Committer
from resilient.storage.commit import Staging
from resilient.telemetry.events import Events, read_events

pytestmark = [pytest.mark.once, pytest.mark.waits]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@dataclass
class Made:
    """What a commit returns, as far as it is looked at."""

    step: int
    nbytes: int = 7
    path: Path = Path("nowhere")
    files: dict = field(default_factory=dict)


@dataclass
class FakeStore:
    """Records what is asked of it, and fails when it is told to."""

    clock: Clock
    commits: list = field(default_factory=list)
    prunes: list = field(default_factory=list)
    fails: list = field(default_factory=list)
    takes: float = 0.0

    @contextmanager
    def staging(self, progress, name=None):
        with tempfile.TemporaryDirectory() as directory:
            yield Staging(Path(directory), progress, None)

    def commit(self, staging, files, *, metrics, finished, environment):
        step = staging.progress.step
        self.clock.time += self.takes
        if self.fails:
            raise self.fails.pop()
        self.commits.append((step, dict(metrics), finished, environment))
        return Made(step)

    def prune(self, keep):
        self.prunes.append(keep)
        return [1, 2]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return FakeStore(clock)


@pytest.fixture
def make(store, clock, tmp_path):
    made = []

    def make(policy, *, keep=None, on_error="raise", on_event=None):
        made.append(
            Checkpointer(
                Committer(
                    store,
                    keep or latest(3),
                    Events(tmp_path, on_event),
                    environment={"keras": "3"},
                    now=clock,
                ),
                policy=policy,
                on_error=on_error,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.__exit__(None, None)  # other tests count threads


def at(step, batches=10):
    return Progress(step, step // batches, step % batches)


@dataclass
class Tensors:
    """What a snapshot holds, here nothing."""

    arrays: dict = field(default_factory=dict)
    written: list = field(default_factory=list)
    released: bool = False

    def write(self, directory, part, *, below):
        assert not self.released
        self.written.append(below)
        return []

    def release(self):
        self.released = True


def snapshot(progress, **given):
    return Snapshot(VariablesRun(), NOWHERE, Tensors(), progress, **given)


def save(saving, progress, *, finished=False, **metrics):
    taken = snapshot(progress, metrics=metrics, finished=finished)
    saving.submit(taken)
    return taken.tensors


def due_steps(saving, last=40, first=1):
    """Steps at which a run saves that asks after every batch."""
    found = []
    for step in range(first, last + 1):
        if saving.ready_to_save(at(step)):
            found.append(step)
            save(saving, at(step))
    return found


# When -----------------------------------------------------------------------------


def test_steps_count_from_the_start_of_the_run(make):
    assert due_steps(make(every(steps=15))) == [15, 30]


def test_epochs_end_where_the_batch_is_0(make):
    assert due_steps(make(every(epochs=1))) == [10, 20, 30, 40]
    assert due_steps(make(every(epochs=3))) == [30]


def test_intervals_count_from_where_a_run_was_resumed(make, clock):
    saving = make(every(steps=15) | every(seconds=60))
    clock.time += 100
    saving.start(at(14))
    assert not saving.ready_to_save(at(14))
    assert saving.ready_to_save(at(15))
    save(saving, at(15))
    assert not saving.ready_to_save(at(16))
    clock.time += 59
    assert not saving.ready_to_save(at(17))
    clock.time += 1
    assert saving.ready_to_save(at(17))


def test_auto_measures_the_first_save_and_says_what_follows(
    make, store, clock, tmp_path
):
    """A write of 2 s in which no batch is trained: sqrt(2 * 2 s * 3,600 s) = 120 s."""
    saved = []
    saving, store.takes = make(adaptive()), 2.0
    for step in range(1, 300):
        clock.time += 1
        if saving.ready_to_save(at(step, batches=1000)):
            saved.append(step)
            save(saving, at(step, batches=1000))
    assert saved == [5, 5 + 118, 5 + 2 * 118]  # and 2 s of each interval are the write
    (chosen,) = (e for e in read_events(tmp_path) if e["event"] == "interval")
    assert (chosen["seconds"], chosen["cost"]) == (pytest.approx(120), 2)


def test_other_policies_choose_no_interval(make, clock, tmp_path):
    due_steps(make(every(steps=5)))
    assert not [e for e in read_events(tmp_path) if e["event"] == "interval"]


def test_what_a_save_takes_is_known_for_the_grace_period(make, store, clock):
    saving, store.takes = make(every(steps=5)), 3.0
    assert saving.slowest is None
    due_steps(saving, last=6)
    assert saving.slowest == 3


def test_a_write_that_is_waited_for_is_no_hang(store, clock, tmp_path):
    """Whoever looks on is told while it lasts."""
    inside = []

    @contextmanager
    def waiting():
        inside.append(len(store.commits))
        yield
        inside.append(len(store.commits))

    saving = Checkpointer(
        Committer(store, latest(3), Events(tmp_path), {}, now=clock),
        policy=every(steps=1),
        on_error="raise",
        waiting=waiting,
    )
    assert saving.ready_to_save(at(1))
    save(saving, at(1), finished=True)
    assert inside[-1] == 1
    assert len(inside) == 2


def test_time_counts_from_the_last_snapshot(make, store, clock):
    """What a kill costs is what was trained since then."""
    saving, store.takes = make(every(seconds=60)), 45.0
    clock.time += 60
    assert saving.ready_to_save(at(1))
    save(saving, at(1))
    assert not saving.ready_to_save(at(2))
    clock.time += 15
    assert saving.ready_to_save(at(3))


def test_the_clock_may_stand_still_without_saves_in_a_row(make):
    assert due_steps(make(every(seconds=1))) == []


def test_a_request_is_due_once_whatever_the_policy_says(make):
    saving = make(every(steps=100))
    assert not saving.ready_to_save(at(3))
    saving.request()
    assert saving.ready_to_save(at(3))
    assert saving.ready_to_save(at(4))  # until it is met
    save(saving, at(4))
    assert not saving.ready_to_save(at(5))


def test_a_request_counts_as_the_last_save(make, clock):
    saving = make(every(seconds=60))
    clock.time += 50
    saving.request()
    save(saving, at(5))
    clock.time += 50
    assert not saving.ready_to_save(at(6))
    clock.time += 10
    assert saving.ready_to_save(at(7))


def test_several_steps_at_once_miss_no_multiple(make):
    saving = make(every(steps=5))
    found = []
    for step in range(4, 41, 4):
        if saving.ready_to_save(at(step)):
            found.append(step)
            save(saving, at(step))
    assert found == [8, 12, 16, 20, 28, 32, 36, 40]


# Around a commit ------------------------------------------------------------------


def test_a_save_commits_prunes_and_tells(make, store, clock, tmp_path):
    events, store.takes = [], 2.5
    keep = latest(2) | best(1, "loss")
    saving = make(every(steps=5), keep=keep, on_event=events.append)
    tensors = save(saving, at(25), finished=True, loss=0.5)
    assert tensors.written == ["variables"]
    assert tensors.released
    assert store.commits == [(25, {"loss": 0.5}, True, {"keras": "3"})]
    assert store.prunes == [keep]
    (event,) = read_events(tmp_path)
    assert events == [event]
    expected = {"event": "saved", "step": 25, "epoch": 2, "batch": 5}
    expected |= {"finished": True, "nbytes": 7, "seconds": 2.5, "pruned": [1, 2]}
    assert {key: event[key] for key in expected} == expected


def failure():
    return CheckpointWriteError("The disk is full.")


def test_a_failed_save_is_raised_and_told(make, store, tmp_path):
    saving, store.fails = make(every(steps=5)), [failure()]
    with pytest.raises(CheckpointWriteError, match="disk is full"):
        save(saving, at(5))
    (event,) = read_events(tmp_path)
    assert (event["event"], event["step"]) == ("save failed", 5)
    assert "disk is full" in event["error"]
    assert store.prunes == []


def test_a_failed_save_may_be_a_warning_in_the_log(make, store, tmp_path, caplog):
    saving, store.fails = make(every(steps=5), on_error="warn"), [failure()]
    with caplog.at_level(logging.WARNING, "resilient"):
        assert due_steps(saving, 16) == [5, 10, 15]
    assert [step for step, *_ in store.commits] == [10, 15]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "Training continues: The disk is full."
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == ["save failed", "saved", "saved"]


def test_a_failed_request_is_tried_again_when_the_policy_says(make, store):
    saving, store.fails = make(every(steps=10), on_error="warn"), [failure()]
    saving.request()
    assert saving.ready_to_save(at(3))
    save(saving, at(3))
    assert not saving.ready_to_save(at(4))
    assert saving.ready_to_save(at(10))


def test_a_failed_save_makes_time_count_anew(make, store, clock):
    saving, store.fails = make(every(seconds=60), on_error="warn"), [failure()]
    clock.time += 60
    assert saving.ready_to_save(at(1))
    save(saving, at(1))
    assert not saving.ready_to_save(at(2))  # not after each batch on a full disk
    clock.time += 60
    assert saving.ready_to_save(at(3))


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_other_errors_are_never_swallowed(make, store, on_error):
    saving, store.fails = make(every(steps=5), on_error=on_error), [KeyError("bug")]
    with pytest.raises(KeyError):
        save(saving, at(5))


def test_a_failed_prune_keeps_the_checkpoint_and_is_told(
    make, store, monkeypatch, tmp_path, caplog
):
    def prune(keep):
        raise CheckpointWriteError("Old checkpoints cannot be deleted.")

    monkeypatch.setattr(store, "prune", prune)
    saving = make(every(steps=5), on_error="warn")
    with caplog.at_level(logging.WARNING, "resilient"):
        save(saving, at(5))
    assert [step for step, *_ in store.commits] == [5]
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == ["prune failed", "saved"]
    assert "Training continues: Old checkpoints cannot be deleted." in caplog.text


def test_what_is_due_does_not_depend_on_how_often_one_asks(make):
    saving = make(every(steps=7) | every(epochs=1))
    answers = [
        saving.ready_to_save(at(step))
        for step, _ in itertools.product([6, 7, 10], "ab")
    ]
    assert answers == [False, False, True, True, True, True]
