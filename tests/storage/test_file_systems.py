"""File systems that lack abilities: mounted ones, and calls that answer as they do."""

import errno
import fcntl
import os
import stat
import tempfile
import time

import pytest
from support import lacking
from support.checkpoint_kills import (
    FORKS,
    hold_lock,
    in_child,
    saving_with_lock,
    try_lock,
)
from support.checkpoint_samples import (
    filled,
    holds,
    leftovers,
    newest_good,
    save,
    steps,
    usable,
)

from resilient.errors import DirectoryInUseError, NotSupportedError
from resilient.policies import latest
from resilient.storage import files
from resilient.storage.layout import committed_steps
from resilient.storage.lock import DirectoryLock
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store

pytestmark = pytest.mark.once

UNABLE = [errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.EPERM]
IN_USE = 17


@pytest.fixture(autouse=True)
def not_yet_told(monkeypatch):
    monkeypatch.setattr(files, "said", set())


@pytest.fixture
def mounted(tmp_path, request):
    """Where a file system that lacks the words of the parameter is mounted."""
    if why := lacking.why_not():
        pytest.skip(f"nothing can be mounted here: {why}")
    with lacking.mounted(tmp_path, *request.param.split(",")) as mount:
        yield mount


def is_open_directory(descriptor):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


ALL_AT_ONCE = "flock,fsyncdir,link"


@pytest.mark.parametrize(
    "mounted", ["flock", "fsyncdir", "link", ALL_AT_ONCE], indirect=True
)
def test_killed_while_saving_on_a_mount_that_lacks_something(mounted):
    """Whole processes, killed at any moment: nothing committed is lost."""
    directory = mounted / "run"
    with DirectoryLock(directory):
        save(Store(directory), 1)
    newest = 1
    for pause in (0.0, 0.013, 0.031):
        ready = FORKS.Event()
        child = FORKS.Process(
            target=saving_with_lock, args=(directory, newest + 1, ready)
        )
        child.start()
        ready.wait()
        while not any(step > newest for step in committed_steps(directory)):
            time.sleep(0.001)
        time.sleep(pause)
        seen = committed_steps(directory)[-1]
        child.kill()
        child.join()
        with DirectoryLock(directory):
            remove_stale_staging(directory)
            reached = newest_good(Store(directory), pytest.fail).step
        assert reached >= seen > newest
        newest = reached
    with DirectoryLock(directory):
        save(Store(directory), newest, version=1)
        assert holds(newest_good(Store(directory), pytest.fail), version=1)
        Store(directory).prune(latest(1))
        assert steps(Store(directory)) == [newest]
        assert leftovers(directory) == []


@pytest.mark.parametrize(
    ("mounted", "why"),
    [
        ("replace", "rename a file over another"),
        ("rename", "cannot rename a directory, so"),
        ("atomic", r'in one step[^$]*fuse.s3fs[^$]*"s3://bucket/run"'),
    ],
    indirect=["mounted"],
)
def test_a_mount_on_which_nothing_would_be_safe_is_refused(mounted, why):
    with pytest.raises(NotSupportedError, match=why):
        DirectoryLock(mounted / "run").acquire()
    assert os.listdir(mounted / "run") == ["lock"]


@pytest.mark.parametrize("mounted", ["flock", ALL_AT_ONCE], indirect=True)
def test_a_mount_without_locks_is_told_of_once(mounted, caplog):
    for _ in range(2):
        with DirectoryLock(mounted / "run"):
            assert in_child(try_lock, mounted / "run") == IN_USE
        assert in_child(try_lock, mounted / "run") == 0
    assert caplog.text.count("does not lock files. Runs on this machine still") == 1


@pytest.mark.parametrize("number", UNABLE)
@pytest.mark.parametrize("kind", [os.path.isdir, os.path.isfile])
def test_a_directory_in_which_nothing_can_be_renamed_is_refused(
    tmp_path, monkeypatch, number, kind
):
    lacking.refuse(monkeypatch, "replace", number, when=kind)
    with pytest.raises(NotSupportedError, match="another file system"):
        DirectoryLock(tmp_path).acquire()
    monkeypatch.undo()
    with DirectoryLock(tmp_path):
        assert os.listdir(tmp_path) == ["lock"]


def test_checkpoints_that_an_image_brought_are_like_others(tmp_path, monkeypatch):
    """An overlay cannot rename directories of a layer below, and can those above."""
    store = filled(tmp_path, 10, 20, 30, 40)

    below = {str(checkpoint.path) for checkpoint in store.checkpoints()}
    lacking.refuse(
        monkeypatch, "rename", errno.EXDEV, when=lambda path: str(path) in below
    )
    with DirectoryLock(tmp_path):
        (tmp_path / "step-00000040" / "run.json").write_bytes(b"")
        assert newest_good(store).step == 30
        assert os.path.isdir(tmp_path / "quarantine" / "step-00000040-1")
        save(store, 30, version=1)
        assert holds(newest_good(store), version=1)
        assert store.discard_after(20) == [30]
        save(store, 50)
        assert store.prune(latest(1)) == [10, 20]
    usable(tmp_path, newest={50})


@pytest.mark.parametrize("number", UNABLE)
def test_directories_that_are_not_synced_are_told_of_once(
    tmp_path, monkeypatch, caplog, number
):
    lacking.refuse(monkeypatch, "fsync", number, when=is_open_directory)
    with DirectoryLock(tmp_path):
        filled(tmp_path, 10, 20)
    usable(tmp_path, newest={20})
    assert caplog.text.count("does not sync directories") == 1


def test_a_directory_whose_sync_fails_is_an_error(tmp_path, monkeypatch):
    lacking.refuse(monkeypatch, "fsync", errno.EIO, when=is_open_directory)
    with pytest.raises(OSError, match="Input/output error"):
        files.sync(tmp_path)


def test_a_disk_that_is_full_at_the_start_is_not_taken_for_one_that_lacks_something(
    tmp_path, monkeypatch
):
    lacking.refuse(
        monkeypatch, "mkdir", errno.ENOSPC, when=lambda path: "probe" in str(path)
    )
    with DirectoryLock(tmp_path):
        assert os.listdir(tmp_path) == ["lock"]


@pytest.fixture
def no_locks(tmp_path_factory, monkeypatch, request):
    """No file below the parameter's directory can be locked, nor a directory."""
    flock, place = fcntl.flock, tmp_path_factory.mktemp("machine")

    def refused(descriptor, how):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.dirname(path) != os.fspath(place) or not request.param[1]:
            raise OSError(request.param[0], os.strerror(request.param[0]))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: os.fspath(place))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="has no /proc")
@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize(
    "no_locks", [(number, True) for number in (*UNABLE, errno.ENOLCK)], indirect=True
)
def test_without_locks_runs_of_one_machine_are_kept_apart(tmp_path, caplog):
    for _ in range(2):
        refused = pytest.raises(DirectoryInUseError, match=f"process {os.getpid()} on")
        with DirectoryLock(tmp_path), refused:
            DirectoryLock(tmp_path).acquire()
    assert caplog.text.count("does not lock files. Runs on this machine still") == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="has no /proc")
@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("no_locks", [(errno.ENOLCK, False)], indirect=True)
def test_where_nothing_can_be_locked_that_is_said(tmp_path, caplog):
    with DirectoryLock(tmp_path), DirectoryLock(tmp_path):
        pass
    assert caplog.text.count("Make sure that only one run uses it at a time") == 1


@pytest.mark.parametrize("mounted", ["flock", ""], indirect=True)
def test_a_killed_owner_does_not_block_a_mount(mounted):
    ready, end = FORKS.Event(), FORKS.Event()
    owner = FORKS.Process(target=hold_lock, args=(mounted / "run", ready, end))
    owner.start()
    ready.wait()
    with pytest.raises(DirectoryInUseError, match=f"process {owner.pid} on"):
        DirectoryLock(mounted / "run").acquire()
    owner.kill()
    owner.join()
    with DirectoryLock(mounted / "run"):
        pass
