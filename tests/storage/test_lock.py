"""One living run per directory: owners are real processes, killed for real."""

import errno
import fcntl
import os
import shutil
import signal
import socket

import pytest
from support.checkpoint_kills import FORKS, hold_and_fork, hold_lock, in_child, try_lock
from support.checkpoint_samples import save, steps

from resilient.errors import CheckpointWriteError, DirectoryInUseError
from resilient.storage import lock
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store

pytestmark = pytest.mark.once

IN_USE = 17


@pytest.fixture
def owner(tmp_path):
    """A process that holds the lock of `tmp_path`."""
    ready, end = FORKS.Event(), FORKS.Event()
    process = FORKS.Process(target=hold_lock, args=(tmp_path, ready, end))
    process.start()
    ready.wait()
    yield process
    process.kill()
    process.join()


def test_a_living_owner_is_named_by_process_and_host(tmp_path, owner):
    with pytest.raises(DirectoryInUseError) as caught:
        DirectoryLock(tmp_path).acquire()
    message = str(caught.value)
    assert f"process {owner.pid} on {socket.gethostname()} since 2" in message
    assert str(tmp_path) in message
    assert "choose another checkpoint_dir" in message


def test_a_killed_owner_does_not_block(tmp_path, owner):
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    with DirectoryLock(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_the_lock_can_be_taken_again_after_its_release(tmp_path):
    lock = DirectoryLock(tmp_path)
    for _ in range(3):
        with lock:
            assert in_child(try_lock, tmp_path) == IN_USE
        assert in_child(try_lock, tmp_path) == 0
    lock.release()


def test_a_second_run_in_the_same_process_is_refused(tmp_path):
    """By whatever path it comes."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    with DirectoryLock(tmp_path / "runs"):
        with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()} on") as e:
            DirectoryLock(tmp_path / "link").acquire()
        assert str(e.value).startswith("This process is already using this")
        assert in_child(try_lock, tmp_path / "runs") == IN_USE


def test_a_refused_attempt_does_not_take_the_lock_from_its_owner(tmp_path, owner):
    for _ in range(2):
        with pytest.raises(DirectoryInUseError):
            DirectoryLock(tmp_path).acquire()


def test_reading_the_lock_file_does_not_give_the_lock_away(tmp_path):
    """A callback that copies the directory must not unlock it (lockf would)."""
    with DirectoryLock(tmp_path / "runs"):
        shutil.copytree(tmp_path / "runs", tmp_path / "copy")
        assert in_child(try_lock, tmp_path / "runs") == IN_USE
        assert in_child(try_lock, tmp_path / "copy") == 0


def test_a_child_that_outlives_its_killed_parent_does_not_hold_the_lock(tmp_path):
    """As data loaders' workers do."""
    alive, alive_for_child = FORKS.Pipe(duplex=False)
    from_us, end = FORKS.Pipe(duplex=False)
    parent = FORKS.Process(
        target=hold_and_fork, args=(tmp_path, alive_for_child, from_us)
    )
    parent.start()
    grandchild = alive.recv()
    parent.join()
    assert parent.exitcode == -9
    os.kill(grandchild, 0)
    with DirectoryLock(tmp_path):
        pass
    end.send("end")
    assert alive.recv() == "ended"


def test_a_forked_child_neither_has_nor_loses_the_lock_of_its_parent(tmp_path):
    """Its release is not the parent's."""
    assert in_child(hold_and_fork, tmp_path, None, None) == 0


def test_the_directory_is_created(tmp_path):
    with DirectoryLock(tmp_path / "a" / "b"):
        assert os.listdir(tmp_path / "a" / "b") == ["lock"]


def test_an_owner_that_left_no_name_is_still_respected(tmp_path, owner):
    (tmp_path / "lock").write_bytes(b"\xff{torn")
    with pytest.raises(DirectoryInUseError, match="an unknown process"):
        DirectoryLock(tmp_path).acquire()


@pytest.mark.parametrize("other", [None, b"", b"another"])
def test_after_the_file_was_deleted_nothing_is_saved(tmp_path, other):
    """Another run may be there by now; a new start takes the lock."""
    path = tmp_path / "lock"
    with DirectoryLock(tmp_path):
        save(Store(tmp_path), 10)
        path.unlink()
        if other is not None:
            path.write_bytes(other)
        with pytest.raises(DirectoryInUseError, match="was deleted or replaced"):
            save(Store(tmp_path), 20)
        assert in_child(try_lock, tmp_path) == 0
    with DirectoryLock(tmp_path):
        save(Store(tmp_path), 20)
    assert steps(Store(tmp_path)) == [10, 20]
    assert in_child(try_lock, tmp_path) == 0


def test_after_a_file_was_replaced_while_it_was_locked_nothing_is_saved(
    tmp_path, monkeypatch
):
    flock = fcntl.flock

    def replace(descriptor, how):
        flock(descriptor, how)
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()

    monkeypatch.setattr(fcntl, "flock", replace)
    with (
        DirectoryLock(tmp_path),
        pytest.raises(DirectoryInUseError, match="was deleted or replaced"),
    ):
        save(Store(tmp_path), 10)


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, "theirs", "missing"])
def test_what_is_no_file_of_ours_is_not_written_to(tmp_path, plant):
    theirs, path = tmp_path / "theirs", tmp_path / "runs" / "lock"
    theirs.write_text("precious")
    path.parent.mkdir()
    if callable(plant):
        plant(path)
    else:
        path.symlink_to(tmp_path / plant)
    with pytest.raises(CheckpointWriteError, match=r"cannot be locked: [^$]*remove"):
        DirectoryLock(path.parent).acquire()
    assert os.listdir(tmp_path) in (["theirs", "runs"], ["runs", "theirs"])
    assert theirs.read_text() == "precious"
    os.rmdir(path) if path.is_dir() else path.unlink()
    with DirectoryLock(path.parent):
        pass


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"process 1 on \x1b[2J since x", r"on \\u001b\[2J since x"),
        (b"somebody", "an unknown process"),
        (b"process 1 on \xff", "an unknown process"),
        (b"process 1 on " + b"h" * 2000, r"hhh\n"),
        (b"process 1 on " + b"h" * 9000, "an unknown process"),
    ],
    ids=["obeyed", "nobody", "torn", "long", "longer"],
)
def test_an_owner_says_nothing_that_a_terminal_obeys(tmp_path, owner, content, told):
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(DirectoryInUseError, match=told) as caught:
        DirectoryLock(tmp_path).acquire()
    assert len(str(caught.value)) < 1000


def test_an_unwritable_directory_is_a_clear_error(tmp_path, monkeypatch):
    def refuse(path, *_arguments, **_keywords):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointWriteError, match=r"cannot be locked: Permission"):
        DirectoryLock(tmp_path).acquire()


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(
    tmp_path, monkeypatch, caplog
):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with DirectoryLock(tmp_path):
        assert in_child(try_lock, tmp_path) == IN_USE
    assert "No space left" in caplog.text


def test_the_library_that_locks_on_windows_locks_here_as_well(tmp_path, monkeypatch):
    portalocker = pytest.importorskip("portalocker")
    monkeypatch.setattr(lock, "portalocker", portalocker, raising=False)
    monkeypatch.delattr(lock, "fcntl")
    with DirectoryLock(tmp_path):
        assert in_child(try_lock, tmp_path) == IN_USE
        with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()} on"):
            DirectoryLock(tmp_path).acquire()
    with DirectoryLock(tmp_path):
        pass
