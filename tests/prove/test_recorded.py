"""What runs recorded, and where two recordings first differ."""

import json

import pytest

from resilient.prove.recorded import Place, first_difference, recorded
from resilient.prove.script import moments

pytestmark = pytest.mark.once

NAMES = ["variables/kernel", "random/keras"]


def written(directory, attempts, run="runs/a"):
    """Events of attempts: each a list of (step, digest), after what it resumed from."""
    path = directory / run / "events.jsonl"
    path.parent.mkdir(parents=True)
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
            names = {"names": NAMES} if not index else {}
            event(
                "digest",
                step=step,
                epoch=0,
                batch=step,
                digest=digest,
                leaves=f"{digest}{'0' * 8}",
                **names,
            )
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
    assert killed.resumed == (None, Place("runs/a", 2, 0, 2))
    assert killed.runs == ("runs/a",)


def test_the_first_difference_has_its_place_and_its_leaves(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    other = [digest(step, "bb" if step >= 5 else "") for step in range(3, 9)]
    killed = written(tmp_path / "b", [(None, map(digest, range(4))), (2, other)])
    found = first_difference(alone, killed)
    assert found.place == Place("runs/a", 5, 0, 5)
    assert found.leaves == ("variables/kernel",)
    assert str(found.place) == "step 5 (epoch 1, batch 5) of runs/a"


def test_the_attempt_that_differs_the_earliest_counts(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(9)))])
    late = [digest(step, "bb" if step == 7 else "") for step in range(8)]
    early = [digest(step, "cc") for step in range(4, 9)]
    killed = written(tmp_path / "b", [(None, late), (3, early)])
    assert first_difference(alone, killed).place.step == 4


def test_kills_are_spread_over_the_time_of_training(tmp_path):
    alone = written(tmp_path / "a", [(None, map(digest, range(8)))])
    first, middle, last = moments(alone, [0.0, 0.55, 0.99])
    assert first.place is None
    assert (middle.place.step, last.place.step) == (3, 6)
    assert 0 <= middle.delay < 1


def test_a_directory_without_runs_has_no_entries(tmp_path):
    found = recorded(tmp_path)
    assert found.entries == ()
    assert found.runs == ()
