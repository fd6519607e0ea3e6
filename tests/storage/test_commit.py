"""A kill at any moment: the checkpoint before, or the new one.

Children are really killed, by SIGKILL. What a power cut would lose is not seen here;
that every file and directory is synced before the rename is checked instead.
"""

import errno
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from support.checkpoint_kills import (
    FORKS,
    first_save,
    in_child,
    killed_at,
    killed_over_an_image,
    next_save,
    only_prune,
    replacing_save,
    saving_on_and_on,
    start_after_a_kill,
)
from support.checkpoint_samples import (
    RAM,
    contents,
    filled,
    holds,
    leftovers,
    newest_good,
    save,
    steps,
    usable,
)

from resilient.storage import directories
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store

pytestmark = pytest.mark.once

TOO_MANY = 1000


@pytest.fixture
def ram():
    with tempfile.TemporaryDirectory(dir=RAM, prefix="resilient-") as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    ("change", "before", "newest", "kills"),
    [
        (first_save, [], {None, 30}, 25),
        (next_save, [10, 20], {20, 30}, 30),
        (replacing_save, [20], {20}, 25),
        (only_prune, [10, 20], {20}, 5),
    ],
)
def test_killed_at_each_step(ram, change, before, newest, kills):
    """Kill at the n-th call to the disk, for every n until the change gets through."""
    seen = set()
    for number in range(1, TOO_MANY):
        directory = ram / str(number)
        filled(directory, *before)
        exit_code = in_child(killed_at, number, change, directory)
        good = usable(directory, newest=newest)
        seen.add(good and (good.step, holds(good, version=1)))
        if exit_code == 0:
            break
        assert exit_code == -9
    assert number > kills
    new = {30: (30, False), 20: (20, change is replacing_save)}[max(newest - {None})]
    assert new in seen, "some kill came after the commit"


@pytest.mark.parametrize(
    ("change", "before", "newest", "kills"),
    [
        (next_save, [10, 20], {20, 30}, 30),
        (replacing_save, [20], {20}, 40),
        (only_prune, [10, 20], {20}, 5),
    ],
)
def test_killed_at_each_step_where_an_image_brought_checkpoints(
    ram, change, before, newest, kills
):
    """They cannot be renamed there, and are copied or deleted."""
    for number in range(1, TOO_MANY):
        directory = ram / str(number)
        filled(directory, *before)
        exit_code = in_child(killed_over_an_image, number, change, directory)
        usable(directory, newest=newest)
        if exit_code == 0:
            break
        assert exit_code == -9
    assert number > kills


def test_half_of_a_former_checkpoint_never_takes_the_place_of_a_whole_one(
    ram, monkeypatch
):
    """What could not be deleted is not what a later kill makes `recover` go back to."""
    store = filled(ram, 20)

    def fails(path):
        (path / "manifest.json").unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(directories, "delete", fails)
    save(store, 20, version=1)
    monkeypatch.undo()
    (left,) = leftovers(ram)
    assert left.startswith("step-00000020.tmp-")
    (ram / "step-00000020").rename(ram / "step-00000020.old-ffffffffffff")  # killed
    assert holds(usable(ram, newest={20}), version=1)


def test_killed_at_each_step_of_a_start(ram):
    """An attempt that is killed while it cleans up is no worse than no attempt."""
    for number in range(1, TOO_MANY):
        directory = ram / str(number)
        store = filled(directory, 10, 20, 30)
        (directory / "step-00000030" / "run.json").write_bytes(b"")
        (directory / "step-00000020").rename(directory / "step-00000020.old-0123456789")
        shutil.copytree(
            directory / "step-00000010", directory / "step-00000040.tmp-000000000001"
        )
        exit_code = in_child(killed_at, number, start_after_a_kill, directory)
        remove_stale_staging(store.directory)
        assert newest_good(store).step == 20
        assert steps(store) == [10, 20]
        assert leftovers(directory) == []
        assert (directory / "quarantine" / "step-00000030-1.reason.json").exists()
        if exit_code == 0:
            break
        assert exit_code == -9
    assert number > 5


def test_killed_at_random_times(ram):
    """Thirty attempts in a row on one directory; none loses what was committed."""
    generator = random.Random(20)
    began = time.monotonic()
    filled(ram / "elsewhere", 1)
    slow = time.monotonic() - began  # as this machine is just now
    first = 1
    for _ in range(30):
        ready = FORKS.Event()
        child = FORKS.Process(target=saving_on_and_on, args=(ram, first, ready))
        child.start()
        ready.wait()
        child.join(generator.uniform(0, max(0.06, 6 * slow)))  # the time of the kill
        child.kill()
        child.join()
        store = Store(ram)
        remove_stale_staging(store.directory)
        good = newest_good(store, pytest.fail)
        if good is not None:
            assert holds(good)
            assert good.step >= first - 1
            first = good.step + 1
    assert first > 10, "some attempts came to save"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="has no /proc")
def test_everything_is_on_the_disk_before_the_rename_and_the_rename_itself_after(
    tmp_path, monkeypatch
):
    """Each file, then each directory, then the rename, then the parent."""
    calls, fsync, rename = [], os.fsync, os.rename

    def spy_fsync(descriptor):
        calls.append(
            os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)
        )
        fsync(descriptor)

    def spy_rename(source, target):
        calls.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    save(Store(tmp_path), 30)
    staging = calls[-3]
    assert staging.startswith("step-00000030.tmp-")
    assert calls[-2:] == ["rename", "."]
    names = [os.path.relpath(call, staging) for call in calls[:-2]]
    assert set(names[: names.index("manifest.json")]) == set(contents(30))
    assert names[names.index("manifest.json") :] == [
        "manifest.json",
        "data",
        "variables",
        ".",
    ] or names[names.index("manifest.json") :] == [
        "manifest.json",
        "variables",
        "data",
        ".",
    ]
