"""What runs recorded, and where two recordings first differ."""

import json
from dataclasses import replace

import pytest

from resilient.prove.recorded import Place, first_difference, only_in_one, recorded
from resilient.prove.script import moments
from resilient.storage.layout import events_name

pytestmark = pytest.mark.once

NAMES = ["variables/kernel", "random/keras"]


def written(directory, attempts, run="runs/a", process=0, names=NAMES, left=None):
    """Events of attempts: each a list of (step, digest), after what it resumed from."""
    path = directory / run / events_name(process)
    path.parent.mkdir(parents=True, exist_ok=True)
    clock, lines = 100.0, []
    for number, (resumed, digests) in enumerate(attempts):
        about = {"attempt": f"attempt{number}", "host": "here", "pid": 10 + number}

        def event(name, about=about, **fields):
            nonlocal clock
            clock += 1
            lines.append({"time": clock, "event": name, **about, **fields})

        event("started")
        if resumed is not None:
            event("restored", step=resumed, epoch=0, batch=resumed)
        for index, (step, digest) in enumerate(digests):
            named = {"names": names} if not index else {}
            event(
                "digest",
                step=step,
                epoch=0,
                batch=step,
                digest=digest,
                leaves=f"{digest}{'0' * 8}",
                **named,
            )
    if left is not None:
        event("left", step=left, digest="0", leaves="0" * 16, names=names)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return recorded(directory)


def digest(step, change=""):
    return step, f"{step:06d}{change or 'aa'}"


def test_equal_recordings_have_no_difference(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(6)))])
    killed = written(
        tmp_path / "b",
        [(None, map(digest, range(4))), (2, map(digest, range(3, 6)))],
    )
    assert first_difference(alone, killed) is None
    assert [place.step for place in alone.order] == list(range(6))
    assert killed.runs == {"runs/a"}


def test_the_first_difference_has_its_place_and_its_leaves(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    other = [digest(step, "bb" if step >= 5 else "") for step in range(3, 9)]
    killed = written(tmp_path / "b", [(None, map(digest, range(4))), (2, other)])
    found = first_difference(alone, killed)
    assert found.leaves == ("variables/kernel",)
    assert found.at == "step 5 (epoch 1, batch 5) of runs/a"


def test_the_attempt_that_differs_the_earliest_counts(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    late = [digest(step, "bb" if step == 7 else "") for step in range(8)]
    early = [digest(step, "cc") for step in range(4, 9)]
    killed = written(tmp_path / "b", [(None, late), (3, early)])
    assert first_difference(alone, killed).at.startswith("step 4 ")


def test_a_state_that_differs_and_is_the_same_later(tmp_path):
    """As metrics, which start over at the end of an epoch."""
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    other = [digest(step, "bb" if step == 3 else "") for step in range(9)]
    killed = written(tmp_path / "b", [(None, other)])
    assert first_difference(alone, killed).at.startswith("step 3 ")


def test_a_place_that_a_rollback_reaches_twice(tmp_path):
    twice = [*map(digest, range(5)), digest(3, "dd"), digest(4, "dd")]
    alone = written(tmp_path / "a", [(None, twice)])
    resumed = [digest(3, "dd"), digest(4, "dd")]
    killed = written(tmp_path / "b", [(None, map(digest, range(4))), (2, resumed)])
    assert first_difference(alone, killed) is None
    other = written(tmp_path / "c", [(None, [*twice, digest(4, "ee")])])
    assert first_difference(alone, other).at.startswith("step 4 ")


def test_a_state_that_one_never_recorded(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(6)))])
    after = [digest(step) for step in (3, 4, 5)]
    killed = written(tmp_path / "b", [(None, map(digest, range(3))), (2, after)])
    assert only_in_one(alone, killed) == []
    short = written(tmp_path / "c", [(None, map(digest, range(2))), (2, after)])
    assert only_in_one(alone, short) == [Place("runs/a", 2, 0, 2)]
    longer = written(tmp_path / "d", [(None, map(digest, range(7)))])
    assert only_in_one(alone, longer) == [Place("runs/a", 6, 0, 6)]


def test_the_events_of_all_processes_count(tmp_path):
    for name, change in (("a", ""), ("b", "bb")):
        written(tmp_path / name, [(None, map(digest, range(4)))])
        other = [digest(step, change) for step in range(4)]
        written(tmp_path / name, [(None, other)], process=1)
    alone, killed = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    assert alone.runs == {"runs/a"}
    found = first_difference(alone, killed)
    assert found.at == "step 0 (epoch 1, batch 0) of runs/a in process 1"


def test_a_run_named_like_a_checkpoint(tmp_path):
    for run in ("runs/step-2", "runs/step-00000002"):
        found = written(tmp_path / run, [(None, [digest(0)])], run)
        assert found.runs == {run}


def test_batches_are_compared_apart_from_states(tmp_path):
    names = ["batch", "variables/kernel"]
    alone = written(tmp_path / "a", [(None, map(digest, range(6)))], names=names)
    other = [digest(step, "bb" if step >= 4 else "") for step in range(6)]
    killed = written(tmp_path / "b", [(None, other)], names=names)
    assert first_difference(alone, killed, "batch").at.startswith("step 4 ")
    states = written(tmp_path / "c", [(None, other)])
    assert {each.batch for each in states.entries} == {""}


def test_a_fit_that_had_ended_may_end_once_more(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(3)))])
    again = written(tmp_path / "b", [(None, map(digest, range(3)))], left=1)
    assert only_in_one(alone, again) == []
    assert only_in_one(again, alone) == [Place("runs/a", 1, 0, 0, at_end=True)]


def test_kills_are_spread_over_the_time_of_training(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(8)))])
    found = [moments(alone, 6, seed) for seed in range(20)]
    assert found[0] == moments(alone, 6, 0)
    assert {len(when) for when in found} == {6}
    assert {each.reached for when in found for each in when} == {*range(8)}
    assert all(0 <= each.delay < 2 for when in found for each in when)
    assert [each.saved for each in found[0]] == [False] * 5 + [True]


def test_kills_are_not_all_where_most_of_the_time_goes(tmp_path):
    """Into the first step, which is compiled."""
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    slow = [
        replace(each, time=each.time + (1000 if each.place.step else 0))
        for each in alone.entries
    ]
    alone = replace(alone, entries=tuple(slow))
    when = moments(alone, 8, 0)
    assert sum(each.reached > 1 for each in when) >= 3


def test_a_directory_without_runs_has_no_entries(tmp_path):
    found = recorded(tmp_path)
    assert found.entries == ()
    assert found.runs == set()
