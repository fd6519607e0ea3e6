"""Several processes that save together, killed at every place of a save.

Nothing trains here; that a training resumes is shown in ``tests/kill_workers``.
"""

import signal
from pathlib import Path

import pytest
from support.saving_together import LAST, attempt, committed, left

pytestmark = pytest.mark.once

KILLED = -signal.SIGKILL
# Around a word of process 0 and of another, and around the rename that commits.
WORDS = ("gather ready", "broadcast ready", "gather part", "broadcast committed")
PLACES = {0: (*WORDS, "publish", "published"), 1: WORDS, 2: WORDS}


def kill(home: Path, count: int, victim: int, place: str) -> bool:
    """Whether it got there. Nothing that was committed is lost; the others say why."""
    before = committed(home)
    statuses = attempt(home, count, {victim: place})
    after = committed(home)
    assert not before or max(after, default=0) >= max(before), place
    if statuses == [0] * count:
        return False
    assert statuses[victim] == KILLED, (home / f"log-{victim}").read_text()
    for index in set(range(count)) - {victim}:
        said = (home / f"log-{index}").read_text()
        # Who waits for nothing more, may have ended before.
        assert statuses[index] == 0 or "PeerLostError: Another process" in said, said
    return True


def check(home: Path, count: int) -> None:
    """All go on from the newest checkpoint, which has all parts, to the end."""
    newest = max(committed(home), default=0)
    assert attempt(home, count, {}) == [0] * count
    assert [end["began"] for end in left(home, count)] == [newest] * count
    assert committed(home) == [LAST - 1, LAST]
    assert not [p.name for p in (home / "checkpoints").iterdir() if ".tmp-" in p.name]


@pytest.mark.parametrize(("count", "victim"), [(2, 0), (2, 1), (3, 0), (3, 2)])
def test_killed_between_what_they_say(count: int, victim: int, tmp_path: Path):
    """In the first save, and in the second of each attempt that goes on from there."""
    for place in PLACES[victim]:
        for number in (1, 2):
            home = tmp_path / f"{place}-{number}"
            home.mkdir()
            assert kill(home, count, victim, f"{place}@{number}")
            done = place in ("broadcast committed", "published")
            if victim == 0:
                assert len(committed(home)) == (number if done else number - 1)
            else:  # process 0 may have heard its part
                assert len(committed(home)) in (number - 1, number)
            check(home, count)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_at_each_call_that_changes_the_disk(victim: int, tmp_path: Path):
    """From the first call of the first save on, until pruning has begun."""
    assert attempt(tmp_path, 2, {}) == [0, 0]
    calls = left(tmp_path, 2)[victim]["calls"]
    last = len(calls) * 4 // LAST
    assert last > 10
    reached = 0
    for number in range(1, last):
        home = tmp_path / f"call-{number}"
        home.mkdir()
        reached += kill(home, 2, victim, f"call@{number}")
        check(home, 2)
    assert reached >= last - 2


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_again_and_again(victim: int, tmp_path: Path):
    """What an attempt leaves behind, the next ones clean up."""
    for place in PLACES[victim]:
        assert kill(tmp_path, 2, victim, f"{place}@1")
    check(tmp_path, 2)
