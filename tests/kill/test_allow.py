"""Runs that were changed on purpose: killed before and after, exact in between."""

import shutil
from dataclasses import replace

import pytest

from .conftest import MakeRun
from .harness import assert_same


def change_and_kill(run_of: MakeRun, name: str, change: str, *kills: str) -> None:
    """Killed, changed, killed again: the run with that change that was left alone.

    Args:
        name: A scenario or a loop.
        change: See ``changes``; begins with the name for ``allow``.
        kills: One for the attempt before the change, and those after it.
    """
    run = run_of(name, options={"save_freq": 2})
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


@pytest.mark.spread
@pytest.mark.parametrize(
    "change", ["batch_size", "config", "data", "metrics", "optimizer"]
)
def test_killed_loop_that_was_changed_on_purpose(change: str, run_of: MakeRun):
    change_and_kill(run_of, "changing", change, "step@8", "step@10", "step@13")
