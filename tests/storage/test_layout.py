"""What may be a checkpoint directory, and what is refused before anything is made."""

import errno
import os
from pathlib import Path

import pytest
from support.checkpoint_samples import filled, newest_good, save

from resilient.errors import (
    CheckpointReadError,
    CheckpointWriteError,
    NotSupportedError,
)
from resilient.policies import latest
from resilient.storage import files, layout
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store
from resilient.telemetry.events import Events

pytestmark = pytest.mark.once


def test_the_directory_stays_the_same_when_the_script_changes_its_own(
    tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    store = Store("runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    save(store, 10)
    assert os.listdir(tmp_path / "runs") == ["step-00000010"]


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/runs").directory == tmp_path / "runs"


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://b", Path("hdfs://x/y")])
def test_a_url_is_refused_for_now(url):
    with pytest.raises(NotSupportedError, match="must be a local path"):
        Store(url)


@pytest.mark.parametrize("path", ["", "  ", "a\0b"])
def test_a_path_that_is_no_name_is_refused(path):
    with pytest.raises(ValueError, match="checkpoint_dir="):
        Store(path)


@pytest.mark.parametrize("path", [None, 3, b"runs"])
def test_something_else_than_a_path_is_refused(path):
    with pytest.raises(TypeError, match="checkpoint_dir="):
        Store(path)


def test_a_path_of_a_disk_that_is_not_mounted_is_refused(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "disk" / "runs")
    with pytest.raises(NotADirectoryError, match="a link whose target is missing"):
        Store(tmp_path / "runs")


def test_a_path_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotADirectoryError, match="checkpoint_dir="):
        Store(tmp_path / "file")


def test_a_parent_that_is_a_file_is_named_when_the_directory_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match="cannot be created"):
        DirectoryLock(tmp_path / "file" / "runs").acquire()


def test_what_a_run_makes_is_for_those_alone_whom_the_umask_leaves_it(tmp_path):
    before = os.umask(0o077)
    try:
        with DirectoryLock(tmp_path / "runs"):
            store = filled(tmp_path / "runs", 10, 20, 30)
            Events(store.directory).emit("saved", step=30)
            (store.directory / "step-00000030" / "run.json").unlink()
            assert newest_good(store).step == 20
            store.discard_all()
            save(store, 10)
            assert store.prune(latest(1)) == []
    finally:
        os.umask(before)
    made = [store.directory, *store.directory.rglob("*")]
    assert len(made) > 20
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_directory_that_a_killed_process_made_is_on_the_disk_too(
    tmp_path, monkeypatch
):
    """That process may not have come to wait for its name."""
    synced, sync = [], files.sync
    monkeypatch.setattr(files, "sync", lambda path: [synced.append(path), sync(path)])
    for path in (tmp_path / "runs" / "mnist", tmp_path / "runs" / "mnist" / "again"):
        layout.make_directory(path)
    assert synced == [
        tmp_path.parent,  # of the name of the first one that was there
        tmp_path,
        tmp_path / "runs",
        tmp_path / "runs",
        tmp_path / "runs" / "mnist",
    ]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_directory_that_cannot_be_listed_is_an_error_of_ours(
    tmp_path, monkeypatch, number
):
    def listdir(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(CheckpointReadError, match=os.strerror(number)):
        layout.committed_steps(tmp_path)


def test_a_directory_whose_parent_this_user_may_not_read_can_be_used(
    tmp_path, monkeypatch
):
    def sync(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "sync", sync)
    layout.make_directory(tmp_path)
