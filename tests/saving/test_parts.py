"""Several processes that save together, killed at every place of a save.

Nothing trains here; that a training resumes is shown in ``tests/kill_workers``.
"""

import errno
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from support.saving_together import LAST, Member, Tensors, attempt, committed, left

from resilient.backends.base import Part
from resilient.errors import CheckpointWriteError, ResilientError
from resilient.policies import latest
from resilient.progress import Progress
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Committer
from resilient.storage import layout
from resilient.storage.store import Store
from resilient.telemetry.events import Events

pytestmark = pytest.mark.once

KILLED = -signal.SIGKILL
# Around a word of process 0 and of another, and around the rename that commits.
WORDS = ("gather part", "broadcast committed")
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


# Without a kill. ------------------------------------------------------------------


class Full(Tensors):
    """Tensors for which there is no space."""

    def write(self, directory: str, part: Part, *, below: str) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")


def errors(
    directory: Path, tensors: list[Tensors], step: int = 1
) -> list[Exception | None]:
    """What each of two processes, here threads, raises as they save together."""
    up, down = Queue[Any](), Queue[Any]()
    name = layout.staging_name(step)

    def save(index: int) -> Exception | None:
        events = Events(directory, process=index)
        member = Member(index, up, down)
        committer = Committer(Store(directory), latest(2), events, {}, member)
        mine = tensors[index], Progress(step, 0, step), Part(index, 2)
        try:
            committer.process(Snapshot(VariablesRun(), NOWHERE, *mine, staging=name))
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(save, range(2)))


def test_processes_with_different_weights_save_nothing(tmp_path: Path):
    """Both get the same error, and what was there stays."""
    assert errors(tmp_path, [Tensors(1, 0), Tensors(1, 1)]) == [None, None]
    found = errors(tmp_path, [Tensors(2, 0), Tensors(3, 1)], step=2)
    assert {type(error) for error in found} == {ResilientError}
    assert len({str(error) for error in found}) == 1
    assert "ranks [1] differ from the ranks before them" in str(found[0])
    assert layout.committed_steps(tmp_path) == [1]


@pytest.mark.parametrize("full", [0, 1])
def test_where_one_cannot_write_none_commits(full: int, tmp_path: Path):
    both: list[Tensors] = [Tensors(1, 0), Tensors(1, 1)]
    both[full] = Full(1, full)
    found = errors(tmp_path, both)
    assert {type(error) for error in found} == {CheckpointWriteError}
    assert all("No space left on device" in str(error) for error in found)
    assert ("In process 1 of 2" in str(found[0])) == (full == 1)
    assert [path.name for path in tmp_path.glob("step-*")] == []
