"""When to save, what to keep."""

import math
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from resilient.policies import (
    Cost,
    adaptive,
    best,
    every,
    keep_policy,
    latest,
    one_per,
    save_policy,
)
from resilient.progress import Progress

pytestmark = pytest.mark.once

START = Progress(step=0, epoch=0, batch=0)


def saved_steps(policy, *, batches, epochs, jump=1, clock=lambda step: 0.0):
    """Steps at which a run with this policy saves."""
    last, last_now, saved = START, clock(0), []
    for epoch in range(epochs):
        for batch in [*range(jump, batches, jump), batches]:
            at_end = batch == batches
            step = epoch * batches + batch
            progress = Progress(step, epoch + at_end, 0 if at_end else batch)
            if policy.due(clock(step), progress, last_now, last):
                last, last_now = progress, clock(step)
                saved.append(step)
    return saved


def test_every_epoch_saves_at_the_end_of_each():
    assert saved_steps(every(epochs=1), batches=5, epochs=3) == [5, 10, 15]


def test_every_two_epochs_saves_at_the_end_of_every_second():
    assert saved_steps(every(epochs=2), batches=5, epochs=5) == [10, 20]


def test_every_steps_counts_across_epochs():
    assert saved_steps(every(steps=4), batches=5, epochs=2) == [4, 8]


def test_steps_at_an_epochs_end_are_saved_there():
    assert saved_steps(every(steps=5), batches=5, epochs=2) == [5, 10]


def test_a_multiple_that_is_jumped_over_counts_at_the_next_chance():
    """steps_per_execution=3 shows steps 3, 6, 9, ...: 4 and 8 are passed at 6 and 9."""
    saved = saved_steps(every(steps=4), batches=12, epochs=1, jump=3)
    assert saved == [6, 9, 12]


def test_one_jump_over_several_multiples_saves_once():
    assert saved_steps(every(steps=2), batches=10, epochs=1, jump=5) == [5, 10]


def test_seconds_count_from_the_last_save():
    saved = saved_steps(every(seconds=3), batches=10, epochs=1, clock=float)
    assert saved == [3, 6, 9]


def test_minutes_are_sixty_seconds():
    assert every(minutes=2) == every(seconds=120)


def test_several_intervals_mean_any_of_them():
    both = every(epochs=1, steps=4)
    assert both == every(epochs=1) | every(steps=4)
    assert saved_steps(both, batches=5, epochs=2) == [4, 5, 8, 10]


def test_the_shorter_of_two_times_wins():
    assert (every(minutes=1) | every(seconds=90)).seconds == 60


def test_nothing_is_due_where_the_last_save_was():
    policy = every(epochs=1, steps=1, seconds=1)
    here = Progress(step=5, epoch=1, batch=0)
    assert not policy.due(100.0, here, 0.0, here)


def test_a_missed_epoch_is_made_up_at_the_next_epochs_end():
    """A save that failed (full disk) does not skip its whole interval."""
    last = Progress(step=0, epoch=0, batch=0)
    assert every(epochs=2).due(0.0, Progress(15, 3, 0), 0.0, last)


def test_a_save_in_mid_epoch_does_not_replace_the_one_at_its_end():
    policy = every(epochs=1)
    assert policy.due(0.0, Progress(10, 2, 0), 0.0, Progress(8, 1, 3))
    assert not policy.due(0.0, Progress(9, 1, 4), 0.0, Progress(5, 1, 0))


def test_epochs_tells_whether_a_policy_saves_at_epoch_ends():
    assert every(epochs=2).epochs
    assert (every(steps=3) | every(epochs=1)).epochs
    assert not every(steps=3).epochs


def test_save_policy_reads_the_short_forms():
    assert save_policy("epoch") == every(epochs=1)
    assert save_policy(500) == every(steps=500)
    assert save_policy(np.int64(500)) == every(steps=500)
    assert save_policy(every(minutes=10)) == every(minutes=10)


def test_auto_takes_youngs_interval_where_that_is_cheap():
    """sqrt(2 * 0.02 s * 3,600 s) = 12 s, which costs 0.17 % of the time."""
    assert adaptive().seconds_between(Cost(0.02, 0.5)) == pytest.approx(12)


def test_auto_spends_no_more_than_its_budget():
    """Young's interval is 379 s for a save that costs 20 s: that would be 5.3 %."""
    assert adaptive().seconds_between(Cost(20.0, 30.0)) == pytest.approx(1000)
    assert adaptive(overhead=0.1).seconds_between(Cost(20.0, 30.0)) == pytest.approx(
        math.sqrt(2 * 20 * 3600)
    )


def test_auto_saves_more_often_where_failures_come_more_often():
    costs = Cost(0.02, 0.5)
    assert adaptive(mtbf=100).seconds_between(costs) == pytest.approx(2)


def test_auto_does_not_save_faster_than_the_disk_takes_it():
    assert adaptive().seconds_between(Cost(0.0, 7.0)) == 7


def test_auto_measures_with_a_first_save_and_saves_epochs_ends():
    policy = save_policy("auto")
    assert policy == adaptive()
    assert saved_steps(policy, batches=6, epochs=2) == [6, 12]
    assert saved_steps(policy, batches=8, epochs=2, clock=float) == [5, 8, 13, 16]


def test_auto_combines():
    policy = adaptive() | every(steps=500)
    assert (policy.epochs, policy.steps) == ((1,), (500,))
    often = adaptive() | adaptive(mtbf=100)
    assert often.seconds_between(Cost(0.02, 0.5)) == pytest.approx(2)


@pytest.mark.parametrize("overhead", [0, -0.1, 1, 2.0, math.nan])
def test_a_budget_that_is_no_share_is_refused(overhead):
    with pytest.raises(ValueError, match=r"adaptive\(overhead"):
        adaptive(overhead=overhead)


@pytest.mark.parametrize("mtbf", [0, -1, math.inf])
def test_a_time_between_failures_that_is_none_is_refused(mtbf):
    with pytest.raises(ValueError, match=r"adaptive\(mtbf"):
        adaptive(mtbf=mtbf)


@pytest.mark.parametrize("value", [True, 2.0, None, [1]])
def test_a_save_freq_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match=r"save_freq.*\nReceived: "):
        save_policy(value)


@pytest.mark.parametrize("value", ["epochs", "AUTO", 0, -1])
def test_a_save_freq_without_meaning_is_refused(value):
    with pytest.raises(ValueError, match="Received: "):
        save_policy(value)


@pytest.mark.parametrize(
    "interval",
    [
        {"epochs": 0},
        {"steps": -5},
        {"seconds": 0},
        {"minutes": -1.0},
        {"seconds": math.inf},
        {"seconds": math.nan},
        {},
    ],
)
def test_an_interval_that_is_not_positive_is_refused(interval):
    with pytest.raises(ValueError, match="every"):
        every(**interval)


@pytest.mark.parametrize(
    "interval",
    [{"epochs": 1.0}, {"steps": True}, {"seconds": True}, {"minutes": "10"}],
)
def test_an_interval_of_another_type_is_refused(interval):
    with pytest.raises(TypeError, match="every"):
        every(**interval)


def test_combining_with_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        every(steps=1) | 5
    with pytest.raises(TypeError):
        latest(1) | 5


@dataclass
class Saved:
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    minutes: int = 0

    @property
    def created(self):
        return f"2026-01-01T{self.minutes // 60:02}:{self.minutes % 60:02}:00Z"


def with_loss(**losses):
    return [Saved(int(name[1:]), {"val_loss": x}) for name, x in losses.items()]


def test_latest_keeps_the_newest():
    assert latest(2).select([Saved(30), Saved(10), Saved(20)]) == {20, 30}


def test_latest_keeps_all_when_there_are_fewer():
    assert latest(5).select([Saved(10)]) == {10}
    assert latest(5).select([]) == set()


def test_a_save_policy_says_when_in_words():
    assert save_policy("auto").words == (
        "at the end of each epoch and in between, for at most 2% of the time"
    )
    policy = every(epochs=5) | every(steps=1500) | every(minutes=10)
    assert policy.words == "every 5 epochs and every 1,500 batches and every 600 s"
    assert save_policy("epoch").words == "at the end of each epoch"


def test_best_keeps_the_best_and_the_newest():
    saved = with_loss(s1=0.5, s2=0.1, s3=0.9)
    assert best(1, monitor="val_loss").select(saved) == {2, 3}


def test_best_with_mode_max_prefers_more():
    saved = with_loss(s1=0.5, s2=0.1, s3=0.2)
    assert best(1, monitor="val_loss", mode="max").select(saved) == {1, 3}


def test_the_union_keeps_what_either_keeps():
    saved = with_loss(s1=0.1, s2=0.5, s3=0.6, s4=0.7)
    assert (latest(2) | best(1, monitor="val_loss")).select(saved) == {1, 3, 4}


def test_spaced_keeps_one_for_every_so_many_hours_and_the_newest():
    """Pruned after each save, as a run does: what was kept once always is."""
    policy, present = one_per(hours=2), []
    for step in range(1, 13):  # one in 50 minutes
        present.append(Saved(step, minutes=50 * step))
        kept = policy.select(present)
        present = [saved for saved in present if saved.step in kept]
    assert kept == {1, 4, 7, 10, 12}


def test_spaced_combines_to_the_shorter_time_and_with_the_newest():
    saved = [Saved(step, minutes=60 * step) for step in range(10)]
    policy = one_per(hours=5) | latest(2) | one_per(hours=4)
    assert policy.select(saved) == {0, 4, 8, 9}


def test_two_latest_combine_to_the_larger():
    assert latest(2) | latest(4) | latest(1) == latest(4)


def test_checkpoints_without_the_metric_do_not_take_part():
    saved = [*with_loss(s1=0.1, s2=0.5), Saved(3), Saved(4)]
    assert best(1, monitor="val_loss").select(saved) == {1, 4}


def test_nan_never_wins():
    for mode in ("min", "max"):
        saved = with_loss(s1=math.nan, s2=0.5, s3=math.nan)
        assert best(1, monitor="val_loss", mode=mode).select(saved) == {2, 3}


def test_infinity_is_the_worst_loss():
    saved = with_loss(s1=math.inf, s2=0.5, s3=0.9)
    assert best(1, monitor="val_loss").select(saved) == {2, 3}


def test_of_equals_the_earlier_is_kept():
    saved = with_loss(s1=0.5, s2=0.5, s3=0.9)
    assert best(1, monitor="val_loss").select(saved) == {1, 3}


def test_monitors_names_the_metrics():
    policy = latest(1) | best(1, monitor="val_loss") | best(2, monitor="auc")
    assert policy.monitors == {"val_loss", "auc"}
    assert latest(3).monitors == frozenset()


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("acc", "max"),
        ("val_accuracy", "max"),
        ("val_sparse_categorical_accuracy", "max"),
        ("auc_1", "max"),
        ("head_precision", "max"),
        ("val_f1_score", "max"),
        ("mean_io_u", "max"),
        ("loss", "min"),
        ("val_loss", "min"),
        ("val_head_loss", "min"),
        ("mean_squared_error", "min"),
        ("mae", "min"),
        ("val_binary_crossentropy", "min"),
        ("root_mean_squared_error_2", "min"),
    ],
)
def test_auto_goes_by_the_name(monitor, mode):
    assert best(1, monitor) == best(1, monitor, mode=mode)


@pytest.mark.parametrize("monitor", ["cosine_similarity", "reward", "vacc", "", "1"])
def test_auto_asks_when_the_name_does_not_say(monitor):
    with pytest.raises(ValueError, match='mode="min" or mode="max"'):
        best(1, monitor)


def test_a_wrong_mode_is_refused():
    with pytest.raises(ValueError, match="mode"):
        best(1, "loss", mode="least")


def test_a_monitor_that_is_no_name_is_refused():
    with pytest.raises(ValueError, match="monitor=3"):
        best(1, monitor=3)


def test_keep_policy_reads_a_number():
    assert keep_policy(3) == latest(3)
    assert keep_policy(best(1, "loss")) == best(1, "loss")


@pytest.mark.parametrize("value", [0, -1])
def test_keeping_nothing_is_refused(value):
    with pytest.raises(ValueError, match="of 1 or more"):
        keep_policy(value)
    with pytest.raises(ValueError, match="of 1 or more"):
        best(value, "loss")


@pytest.mark.parametrize("value", [True, 1.5, "3", None])
def test_a_keep_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="keep"):
        keep_policy(value)


@pytest.mark.parametrize(
    ("make", "error", "todo"),
    [
        (lambda: every(seconds=0), ValueError, "must be a number above 0 and finite."),
        (lambda: every(minutes=float("inf")), ValueError, "above 0 and finite."),
        (lambda: every(seconds="3"), TypeError, "must be a number above 0"),
        (lambda: every(steps=0), ValueError, "must be an integer of 1 or more."),
        (lambda: every(steps=1.5), TypeError, "must be an integer of 1 or more."),
        (lambda: save_policy(None), TypeError, '1 or more, "auto", "epoch", or a'),
        (lambda: save_policy("never"), ValueError, 'of batches, "auto", "epoch"'),
        (lambda: keep_policy(None), TypeError, "or a policy such as latest(3)"),
    ],
)
def test_an_error_says_what_to_do(make, error, todo):
    with pytest.raises(error, match=re.escape(todo)):
        make()


def test_numbers_of_numpy_are_numbers():
    assert every(seconds=np.float32(2)) == every(seconds=2)
    assert every(steps=np.int64(2)) == every(steps=2)
