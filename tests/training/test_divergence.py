"""What counts as a bad loss, and which batches are left out because of it."""

import errno
import json
import math
import os

import numpy as np
import pytest

from resilient import (
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    NotSupportedError,
    Rollback,
)
from resilient.policies import KeepPolicy
from resilient.training import rollback
from resilient.training.options import checked_loss_spike, checked_on_nan
from resilient.training.rollback import Bad, Diverged, LossWatch, Skip, leave_out

pytestmark = pytest.mark.once

# What may be chosen --------------------------------------------------------------


def test_rollback_is_palms_recipe():
    assert checked_on_nan("rollback") == Rollback(steps=100, skip=300, limit=3)
    assert checked_on_nan(Rollback(skip=500)) == Rollback(100, 500, 3)


@pytest.mark.parametrize("value", ["Stop", None, True, 3, {"steps": 1}, np.ones(2)])
def test_an_on_nan_without_meaning_is_refused(value):
    with pytest.raises(ValueError, match=r"`on_nan` must be .*\nReceived: "):
        checked_on_nan(value)


@pytest.mark.parametrize(
    "given", [{"steps": 0}, {"skip": -1}, {"limit": 0}, {"steps": 5, "skip": 5}]
)
def test_a_rollback_that_leads_nowhere_is_refused(given):
    with pytest.raises(ValueError, match=r"Rollback\(.*\nReceived: "):
        Rollback(**given)


@pytest.mark.parametrize("given", [{"steps": 1.5}, {"skip": "9"}, {"limit": True}])
def test_a_rollback_of_another_type_is_refused(given):
    with pytest.raises(TypeError, match=r"Rollback\(.*\nReceived: "):
        Rollback(**given)


@pytest.mark.parametrize("value", [1, 0.5, -3, math.inf])
def test_a_spike_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="loss_spike"):
        checked_loss_spike(value, "stop")


def test_a_spike_that_nobody_would_act_on_is_refused():
    with pytest.raises(ValueError, match=r"has no effect.*\nReceived: loss_spike=5"):
        checked_loss_spike(5, "ignore")


# Losses --------------------------------------------------------------------------


def seen(losses, *, spike=None, epochs=(), at_once=1, watch=None):
    """The bad batch among these, as Keras logs them: means of the epoch so far."""
    watch = watch or LossWatch(spike, active=True)
    since = 0
    for step in range(at_once - 1, len(losses), at_once):
        if step + 1 - at_once in epochs:
            watch.begin_epoch()
            since = step + 1 - at_once
        mean = np.float32(np.mean(losses[since : step + 1]))
        watch.note(step, at_once, {"loss": mean})
        try:
            watch.check(all_of_them=True)
        except Diverged as end:
            return end.bad
    return None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_bad(value):
    bad = seen([1.0] * 7 + [value] + [1.0] * 3)
    assert (bad.step, bad.why) == (7, "the loss is not finite")


def test_without_a_rule_a_spike_is_not_bad():
    assert seen([1.0] * 50 + [1000.0] + [1.0] * 3) is None


def test_a_spike_is_bad_though_keras_logs_a_mean():
    """The mean goes from 1 to 1.18 only."""
    bad = seen([1.0] * 50 + [10.0] + [1.0] * 3, spike=5)
    assert bad.step == 50
    assert bad.value == pytest.approx(10.0, rel=1e-3)
    assert bad.why == "the loss is 10 times the usual 1"


def test_a_spike_within_one_execution_of_several_steps():
    bad = seen([1.0] * 50 + [40.0, 40.0] + [1.0] * 4, spike=5, at_once=2)
    assert bad.step == 51


def test_means_begin_anew_with_each_epoch():
    losses = [1.0] * 30 + [3.0] * 30 + [1.0] * 30
    assert seen(losses, spike=5, epochs=(30, 60)) is None
    assert seen(losses, spike=2, epochs=(30, 60)).step == 30


def test_the_first_batches_are_no_spikes():
    assert seen([1.0] * 19 + [10.0] + [1.0] * 5, spike=5) is None


def test_losses_that_are_not_positive_have_no_spikes():
    assert seen([-1.0] * 50 + [10.0], spike=5) is None


def test_what_was_seen_is_kept_exactly():
    """Through JSON and back, the same spike is seen at the same batch."""
    losses = [*np.random.default_rng(0).normal(1.0, 0.05, 60), 1.6]
    whole = seen(losses, spike=1.5)
    first = LossWatch(1.5, active=True)
    assert seen(losses[:40], watch=first) is None
    second = LossWatch(1.5, active=True)
    second.restore(json.loads(json.dumps(first.state())))
    for step in range(40, 61):
        second.note(step, 1, {"loss": np.float32(np.mean(losses[: step + 1]))})
    with pytest.raises(Diverged) as end:
        second.check(all_of_them=True)
    assert whole is not None
    assert end.value.bad == whole


def test_the_last_batch_may_be_left_for_later():
    """The device may not be done with it."""
    watch = LossWatch(None, active=True)
    watch.note(0, 1, {"loss": math.nan})
    watch.check(all_of_them=False)
    watch.note(1, 1, {"loss": math.nan})
    with pytest.raises(Diverged) as end:
        watch.check(all_of_them=False)
    assert end.value.bad.step == 0


@pytest.mark.parametrize("logs", [None, {}, {"accuracy": math.nan}])
def test_without_a_loss_there_is_nothing_to_look_at(logs):
    watch = LossWatch(None, active=True)
    with pytest.raises(NotSupportedError, match="logs no loss"):
        watch.note(0, 1, logs)


# What is left out ----------------------------------------------------------------


def test_palms_recipe():
    skip = Skip.over(Bad(1000, math.nan, "why"), Rollback())
    assert (skip.start, skip.stop, skip.bad) == (900, 1200, 1000)


def test_there_is_nothing_before_the_first_batch():
    assert Skip.over(Bad(20, math.nan, "why"), Rollback()).start == 0


def trained(skips, *, epochs, length, at_once=1):
    """Steps of the batches that are trained."""
    return [
        step
        for epoch in range(epochs)
        for begin in range(0, length, at_once)
        if not leave_out(skips, epoch * length, begin, begin + at_once - 1, length)
        for step in range(
            epoch * length + begin, epoch * length + min(begin + at_once, length)
        )
    ]


def test_batches_are_left_out():
    skip = Skip(3, 7, 5, "")
    assert trained([skip], epochs=1, length=10) == [0, 1, 2, 7, 8, 9]


def test_rollbacks_add_up():
    skips = [Skip(1, 3, 2, ""), Skip(2, 5, 4, "")]
    assert trained(skips, epochs=1, length=7) == [0, 5, 6]


def test_the_last_batch_of_an_epoch_is_trained():
    """Keras would have no logs if the run was resumed with nothing left to train."""
    skip = Skip(3, 14, 5, "")
    assert trained([skip], epochs=3, length=5) == [0, 1, 2, 4, 9, 14]


def test_where_the_last_batch_is_bad_the_one_before_it_is_trained():
    skip = Skip(1, 8, 4, "")
    assert trained([skip], epochs=2, length=5) == [0, 3, 8, 9]


def test_steps_that_are_executed_at_once_are_left_out_together():
    assert trained([Skip(2, 6, 5, "")], epochs=1, length=10, at_once=2) == [
        *(0, 1, 6, 7, 8, 9),
    ]
    bad_last = Skip(4, 20, 9, "")
    assert trained([bad_last], epochs=1, length=10, at_once=2) == [*range(4), 6, 7]


def test_a_single_batch_is_trained_whatever_it_is():
    assert trained([Skip(0, 9, 1, "")], epochs=3, length=1) == [0, 1, 2]


def test_where_the_length_is_unknown_all_are_left_out():
    assert leave_out([Skip(3, 7, 5, "")], 0, 6, 6, None)


# On the disk ---------------------------------------------------------------------


def test_rollbacks_are_kept(tmp_path):
    skips = [Skip(1, 3, 2, "why"), Skip(2, 5, 4, "ä")]
    rollback.write(tmp_path, skips)
    assert rollback.read(tmp_path) == skips
    assert [path.name for path in tmp_path.iterdir()] == ["rollbacks.json"]
    rollback.forget(tmp_path)
    rollback.forget(tmp_path)
    assert rollback.read(tmp_path) == []


def test_what_a_new_start_forgot_does_not_return_after_a_power_cut(
    tmp_path, monkeypatch
):
    rollback.write(tmp_path, [Skip(1, 3, 2, "why")])
    synced, sync = [], os.fsync

    def fsync(descriptor):
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            synced.append(os.listdir(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    rollback.forget(tmp_path)
    assert synced == [[]]


SKIP = '{"start": 1, "stop": 3, "bad": 2, "why": "w"}'


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "{}", '[{"start": 1}]', "[1]", "null"),
        f"[{SKIP.replace('1', '-1')}]",
        f"[{SKIP.replace('1', '3')}]",
        f"[{SKIP.replace('3', '1e9')}]",
        f"[{SKIP.replace('3', '9' * 5000)}]",
        f"[{SKIP.replace('3', str(1 << 70))}]",
        f"[{SKIP.replace('2', 'true')}]",
        f"[{SKIP.replace('2', 'NaN')}]",
        f"[{SKIP.replace('w', 'w' * 1001)}]",
        f"[{', '.join([SKIP] * 100_001)}]",
        f"[{'[' * 100_000}{']' * 100_000}]",
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_file_is_no_reason_to_train_on(tmp_path, content):
    (tmp_path / "rollbacks.json").write_text(content)
    with pytest.raises(CorruptCheckpointError, match=r"rollbacks\.json"):
        rollback.read(tmp_path)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "directory", "huge"])
def test_what_is_no_small_file_is_no_list_of_rollbacks(tmp_path, kind):
    """Not to be read is not the same as not to be there."""
    path, target = tmp_path / "rollbacks.json", tmp_path / "target"
    target.write_text("[]")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to(target if kind == "link" else "nowhere")
    with pytest.raises(CorruptCheckpointError, match=r"rollbacks\.json"):
        rollback.read(tmp_path)


def test_rollbacks_that_cannot_be_read_here_and_now_are_not_damaged(
    tmp_path, monkeypatch
):
    def refuse(directory, name, limit):
        raise OSError(errno.EMFILE, "Too many open files", str(directory / name))

    monkeypatch.setattr(rollback, "read_file", refuse)
    with pytest.raises(CheckpointReadError, match="raise the limit"):
        rollback.read(tmp_path)


def test_rollbacks_have_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o077)
    try:
        rollback.write(tmp_path, [Skip(1, 3, 2, "why")])
    finally:
        os.umask(before)
    assert (tmp_path / "rollbacks.json").stat().st_mode & 0o777 == 0o600


def test_a_directory_in_the_place_of_the_rollbacks_is_not_forgotten(tmp_path):
    (tmp_path / "rollbacks.json").mkdir()
    with pytest.raises(CheckpointWriteError, match=r"rollbacks\.json"):
        rollback.forget(tmp_path)


def test_a_full_disk_leaves_the_old_ones(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    rollback.write(tmp_path, [Skip(1, 3, 2, "why")])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointWriteError, match="No space left"):
        rollback.write(tmp_path, [])
    assert len(rollback.read(tmp_path)) == 1


class At:
    """A checkpoint, as far as ``keep`` is concerned."""

    def __init__(self, step):
        self.step, self.metrics = step, {}


def test_a_checkpoint_to_go_back_to_is_kept():
    def kept(steps, policy):
        return sorted(policy.select([At(step) for step in steps]))

    policy = KeepPolicy(2) | KeepPolicy(back=100)
    assert kept([0, 50, 120, 130, 210, 220], policy) == [120, 130, 210, 220]
    assert kept([10, 20, 30, 40], policy) == [10, 30, 40]
    assert kept([], policy) == []
    assert kept([0, 100, 200], policy) == [100, 200]


def test_there_is_always_one_to_go_back_to():
    """Whatever the saves, once the first one is old enough."""
    policy, present = KeepPolicy(2) | KeepPolicy(back=100), []
    for step in range(7, 2000, 7):
        present = [*present, At(step)]
        kept = policy.select(present)
        present = [at for at in present if at.step in kept]
        assert len(present) <= 4
        if step >= 107:
            assert any(step - 210 <= at.step <= step - 100 for at in present)
