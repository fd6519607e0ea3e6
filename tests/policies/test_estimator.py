"""The options of tf.estimator.RunConfig, as arguments of fit."""

import pytest

from resilient import RunConfig, every, latest, one_per
from resilient.policies import keep_policy, save_policy

pytestmark = pytest.mark.once


def options(**given):
    return RunConfig(model_dir="runs/a", **given).options()


def test_without_options_it_saves_every_ten_minutes_and_keeps_five():
    """As tf.estimator did."""
    expected = {"checkpoint_dir": "runs/a", "save_freq": every(minutes=10)}
    assert options() == expected | {"keep": latest(5)}


def test_it_saves_by_steps_or_by_seconds():
    assert options(save_checkpoints_steps=500)["save_freq"] == every(steps=500)
    assert options(save_checkpoints_secs=90)["save_freq"] == every(seconds=90)


def test_steps_and_seconds_mean_either_of_them():
    given = options(save_checkpoints_steps=5, save_checkpoints_secs=9)
    assert given["save_freq"] == every(steps=5) | every(seconds=9)


@pytest.mark.parametrize("value", [0, None])
def test_no_maximum_keeps_all(value):
    keep = options(keep_checkpoint_max=value)["keep"]
    assert keep.select(map(Saved, range(1000))) == set(range(1000))


def test_one_for_every_so_many_hours_is_kept_besides():
    keep = options(keep_checkpoint_max=2, keep_checkpoint_every_n_hours=6)["keep"]
    assert keep == latest(2) | one_per(hours=6)


def test_fit_takes_what_it_gives():
    given = options(save_checkpoints_steps=7)
    assert save_policy(given["save_freq"]) is given["save_freq"]
    assert keep_policy(given["keep"]) is given["keep"]


def test_what_means_nothing_is_refused_when_it_is_made():
    with pytest.raises(ValueError, match="of 1 or more"):
        RunConfig(model_dir="a", save_checkpoints_steps=0)
    with pytest.raises(ValueError, match="above 0"):
        RunConfig(model_dir="a", keep_checkpoint_every_n_hours=0)
    with pytest.raises(TypeError, match="save_summary_steps"):
        RunConfig(model_dir="a", save_summary_steps=100)


class Saved:
    def __init__(self, step):
        self.step, self.metrics, self.created = step, {}, "2026-01-01T00:00:00Z"
