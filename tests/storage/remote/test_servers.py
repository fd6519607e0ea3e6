"""Runs that are killed, that two write, whose disk or store is gone: on each server.

These are moto's; and in ``nox -s stores`` fake-gcs-server and Azurite.
"""

import itertools
import os
import random
import shutil

import pytest
from support import object_store
from support.checkpoint_kills import FORKS, in_child
from support.checkpoint_samples import holds, newest_good, save, verified
from support.object_store import KILL, KILL_AFTER, STORES
from support.store_lives import IN_USE, Machine, live, write

from resilient.errors import CheckpointMismatchError, CheckpointReadError
from resilient.storage.layout import REMOTE, committed_steps

pytestmark = [pytest.mark.once, pytest.mark.spread, pytest.mark.timeout(3600)]

HERE = list(STORES) if os.environ.get("AZURITE") else ["s3"]
RUNS = itertools.count()


@pytest.fixture(scope="module", params=HERE)
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with object_store.running(folder, request.param) as running:
        yield running


@pytest.fixture
def far(server):
    """The server, where no request fails yet."""
    server.restart()
    yield server
    server.restart()


@pytest.fixture
def run(far):
    """Address of a new run, and options."""
    return far.address(f"run-{next(RUNS)}"), far.options


@pytest.mark.parametrize(
    "session", ["short", pytest.param("long", marks=pytest.mark.long)]
)
def test_a_kill_at_any_request_loses_nothing(far, tmp_path, session):
    """Of two machines that save one after the other, before and after its answer.

    Whoever goes on from there: the machine that was killed, or a new one.
    """

    def kill(name, at=0, how=None):
        far.restart()
        far.fault = lambda number, _: how if number == at else None
        run = far.address(name), far.options
        return in_child(live, tmp_path / name, run, far.environment, far.victim)

    assert kill(f"{session}-whole") == 0
    assert far.committed() == [1, 2]
    kills = [(at, how) for at in range(1, far.count + 1) for how in (KILL, KILL_AFTER)]
    if session == "short":
        kills = random.Random(22).sample(kills, 4)
    killed_at = []
    for at, how in kills:
        name = f"{session}-{at}-{how.replace(' ', '-')}"
        status = kill(name, at, how)
        assert status == -9 or far.count < at  # some lives have fewer requests
        killed_at += [at] * (status == -9)
        acknowledged = max(far.committed(), default=0)
        far.restart()
        left, folder = far.contents(name), tmp_path / name
        killed = "second" if (folder / "second").is_dir() else "first"
        for machine in (killed, "new"):
            far.replace(name, left)
            near, run = folder / machine, (far.address(name), far.options)
            known = committed_steps(near) if near.is_dir() else []
            begin = Machine(near, *run).goes_on()
            assert begin >= max([acknowledged, *known]), (name, machine)
            newest = Machine(folder / f"after-{machine}", *run).finds()
            assert (newest.step, holds(newest)) == (begin + 1, True), (name, machine)
            superfluous = f"{name}/step-{begin:08}"
            assert not any(
                each.startswith(superfluous) and each in left
                for each in far.objects(name)
            )
        far.replace(name, {})
        shutil.rmtree(folder)
    assert killed_at
    print(f"{far.protocol}: {len(killed_at)} kills of {len(kills)}")


@pytest.mark.parametrize("begin", ["together", "later"])
def test_of_two_writers_one_ends(far, run, tmp_path, begin):
    together = FORKS.Barrier(2 if begin == "together" else 1)
    alone, keep = FORKS.Event(), 3
    writers = [
        FORKS.Process(
            target=write,
            args=(tmp_path / str(k), run, far.environment, k, keep, together, alone),
        )
        for k in (1, 2)
    ]
    for writer in writers:
        writer.start()
        while begin == "later" and not far.committed():
            assert writer.is_alive()
            writer.join(0.01)
    for writer in writers:
        writer.join(120)
        writer.kill()
    ended = [writer.exitcode for writer in writers]
    assert sorted(ended) == [0, IN_USE]
    winner = 1 + ended.index(0)
    assert begin == "together" or winner == 2
    new = Machine(tmp_path / "new", *run).store
    with new.locked():
        assert len(new.steps()) == keep
        assert all(holds(verified(new, step), winner) for step in new.steps())


def test_a_machine_without_its_disk_goes_on(run, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    assert Machine(a, *run).goes_on(steps=3) == 0
    assert Machine(b, *run).goes_on() == 3
    shutil.rmtree(b)
    assert Machine(b, *run).goes_on() == 4
    assert Machine(a, *run).goes_on() == 5  # it has fallen behind


def test_a_store_that_refuses_everything_is_done_without(far, run, tmp_path):
    a, b = (Machine(tmp_path / name, *run, patience=0.5) for name in "ab")
    assert a.goes_on() == 0
    far.fault = lambda *_: 403
    with pytest.raises(CheckpointReadError, match="store cannot be used right now"):
        b.goes_on()
    with a.store.opened():
        assert newest_good(a.store).step == 1
        save(a.store, 2)
        assert "2: only in" in a.waits()
    far.restart()
    with a.store.opened():
        assert not a.waits()
    assert b.goes_on() == 2


def test_a_store_that_was_emptied_is_not_taken_for_a_new_run(far, run, tmp_path):
    name = run[0].rpartition("/")[2]
    a, b = (Machine(tmp_path / name, *run) for name in "ab")
    with a.store.opened():
        a.saves(1)
        far.replace(name, {})
        save(a.store, 2)
        assert f"claims.json of this run is gone from {run[0]}" in a.waits()
    with pytest.raises(
        CheckpointMismatchError, match=r"(?s)no longer knows.*remote\.json"
    ):
        a.goes_on()
    assert committed_steps(a.near) == [1, 2]
    (a.near / REMOTE).unlink()  # as if it had never been in a store
    assert a.goes_on() == 2
    assert b.goes_on() == 3
    far.replace(name, {})
    with b.store.opened(anew=True):
        b.store.discard_all()
        b.saves(1)
    assert holds(Machine(tmp_path / "c", *run).finds())
