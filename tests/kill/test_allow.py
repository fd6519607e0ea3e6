"""Runs that were changed on purpose: killed before and after, exact in between."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from .changes import CHANGES
from .conftest import MakeRun
from .harness import assert_same


def change_and_kill(
    run_of: MakeRun, name: str, change: str, *kills: str, save_freq: Any = 2
) -> None:
    """Killed, changed, killed again: the run with that change that was left alone.

    Args:
        name: A scenario or a loop.
        change: See ``changes``; begins with the name for ``allow``.
        kills: One for the attempt before the change, and those after it.
        save_freq: See ``attempt.policy``.
    """
    run = run_of(name, options={"save_freq": save_freq})
    first, *others = kills
    assert run(first).killed
    assert run.committed()
    run.change = change
    run.options["allow"] = [change.partition(" ")[0]]
    alone = replace(run, home=run.home.with_name("alone"), attempts=run.attempts)
    shutil.copytree(run.home, alone.home)
    for kill in others:
        before = run.committed()
        assert run(kill).killed, f"{kill} was never reached"
        assert run.committed() != before
    assert_same(alone().record, run().record)


def some(changes: Iterable[str], short: Iterable[str]) -> list[Any]:
    """Each is resumed, without a kill, by tests/training/*/test_allow*.py."""
    return [
        pytest.param(each, marks=[pytest.mark.long] * (each not in short))
        for each in changes
    ]


@pytest.mark.spread
@pytest.mark.parametrize(
    "change",
    some(
        ["batch_size", "config", "data", "metrics", "optimizer"],
        short=["data"],
    ),
)
def test_killed_loop_that_was_changed_on_purpose(change: str, run_of: MakeRun):
    change_and_kill(run_of, "changing", change, "step@8", "step@10", "step@13")


@pytest.mark.spread
@pytest.mark.parametrize("change", some(CHANGES, short=["optimizer"]))
def test_killed_fit_that_was_changed_on_purpose(change: str, run_of: MakeRun):
    kills = ("train_batch_end@1:4", "train_batch_end@2:1", "train_batch_end@2:3")
    change_and_kill(run_of, "dense", change, *kills)


# Scenarios, and that whose data they get: of each kind, with steps_per_epoch and not.
DATA = {
    "generator_of_global_random_numbers": "iterable_of_global_random_numbers",
    "iterable_of_global_random_numbers": "validated_on_a_generator",
    "iterable_with_a_length": "pydataset_reshuffled",
    "pydataset_augmented": "dense",
    "dense": "pydataset_reshuffled",
    "tf_data_shuffled_twice_with_a_seed": "torch_generator",
    "torch_shuffled": "tf_data_of_unknown_length",
}


@pytest.mark.sources
@pytest.mark.spread
@pytest.mark.parametrize(
    "before",
    some(
        DATA,
        short=["generator_of_global_random_numbers", "dense", "torch_shuffled"],
    ),
)
def test_killed_fit_that_got_data_of_another_kind(before: str, run_of: MakeRun):
    """At the end of an epoch, where it begins as new."""
    kills = ("epoch_begin@1", "train_batch_end@1:3", "train_batch_end@2:2")
    every = [{"steps": 2}, {"epochs": 1}]
    change_and_kill(run_of, before, f"data {DATA[before]}", *kills, save_freq=every)
