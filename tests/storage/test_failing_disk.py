"""A disk that is full, read-only, gone or broken: a clear error, nothing is lost."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from support.checkpoint_kills import in_child, save_with_limit, save_without_permission
from support.checkpoint_samples import (
    RAM,
    at_call,
    before_disk_calls,
    commit,
    filled,
    holds,
    leftovers,
    newest_good,
    save,
    steps,
    usable,
    verified,
    writer,
)

from resilient.errors import CheckpointNotFoundError, CheckpointWriteError
from resilient.progress import Progress
from resilient.storage.store import Store

pytestmark = pytest.mark.once

TOO_MANY = 1000


@pytest.fixture
def ram():
    with tempfile.TemporaryDirectory(dir=RAM, prefix="resilient-") as directory:
        yield Path(directory)


def fail(number):
    def action(_name):
        raise OSError(number, os.strerror(number))

    return action


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_at_any_step_leaves_the_last_checkpoint(ram, number):
    """The error is clear, nothing is left over, and the next save goes through."""
    name = errno.errorcode[number]
    for call in range(1, TOO_MANY):
        directory = ram / str(call)
        store = filled(directory, 20)
        try:
            with before_disk_calls(at_call(call, fail(number))):
                save(store, 30)
        except CheckpointWriteError as error:
            caught = error
        else:
            break
        assert "step 30 (epoch 4, batch 0) cannot be written: " in str(caught)
        assert f"({name})" in str(caught)
        assert caught.__cause__.errno == number
        assert leftovers(directory) == []
        assert newest_good(store, pytest.fail).step in (20, 30)
        save(store, 30)
        assert holds(newest_good(store, pytest.fail))
    assert call > 20


def test_a_disk_that_fails_while_a_step_is_replaced_leaves_one_of_the_two(ram):
    for call in range(1, TOO_MANY):
        directory = ram / str(call)
        store = filled(directory, 20)
        failed = False
        try:
            with before_disk_calls(at_call(call, fail(errno.ENOSPC))):
                save(store, 20, version=1)
        except CheckpointWriteError:
            failed = True
        assert steps(store) == [20]
        good = newest_good(store, pytest.fail)
        assert good.step == 20
        assert holds(good, version=0) or holds(good, version=1)
        if not failed and holds(good, version=1) and leftovers(directory) == []:
            break
    assert call > 20


def test_a_file_that_the_system_does_not_let_grow(tmp_path):
    filled(tmp_path, 20)
    assert in_child(save_with_limit, tmp_path) == 17
    assert usable(tmp_path, newest={20})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_device_that_is_really_full(tmp_path):
    store = filled(tmp_path, 20)

    def write(_staging):
        with open("/dev/full", "wb", buffering=0) as device:
            device.write(b"x")

    with pytest.raises(CheckpointWriteError, match=r"ENOSPC[^$]*Free some space"):
        commit(store, Progress(30, 3, 0), write)
    assert usable(tmp_path, newest={20})


def test_a_directory_that_may_only_be_read():
    """Reading still works; saving and pruning say what is not allowed."""
    # Not tmp_path, which other users may not enter.
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "runs")
        filled(directory, 10, 20)
        os.chmod(parent, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | 0o005)
        directory.chmod(0o555)
        assert in_child(save_without_permission, directory) == 17
        directory.chmod(0o755)
        assert usable(directory, newest={20})


def test_a_directory_that_disappears(tmp_path):
    """It is not silently made anew: what was in it is gone, and someone should know."""
    store = filled(tmp_path / "runs", 10, 20)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointWriteError, match="Something removed the directory"):
        save(store, 30)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_disappears_and_is_made_anew_by_the_backend(tmp_path):
    """TensorFlow makes missing directories: half a checkpoint must not be committed."""
    store = filled(tmp_path / "runs", 10)

    def write(staging):
        Path(staging, "run.json").write_bytes(b"{}")
        shutil.rmtree(tmp_path / "runs")
        Path(staging, "variables").mkdir(parents=True)

    with pytest.raises(CheckpointWriteError, match="Something removed the directory"):
        commit(store, Progress(20, 2, 0), write)
    assert store.checkpoints() == []


def test_a_directory_that_is_replaced_by_a_file(tmp_path):
    store = filled(tmp_path / "runs", 10)
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("not a directory")
    with pytest.raises(CheckpointWriteError, match="Something replaced the directory"):
        save(store, 30)


def raised_by_a_backend(kind):
    """Errors as backends dress them up, with the text that they really have."""
    if kind == "orbax":
        return ValueError(
            'RESOURCE_EXHAUSTED: Error writing "x/0" in OCDBT database at local file '
            '"ocdbt.process_0/": Failed writing: "d/8e57": Failed to write 322636 '
            "bytes to file 14: No space left on device [os_error_code='28']"
        )
    if kind == "descriptors":
        return ValueError("RESOURCE_EXHAUSTED: Error opening: Too many open files")
    if kind == "tensorflow":
        return RuntimeError(
            "{{function_node}} variables/x.data; No space left on device"
        )
    if kind == "torch":
        return RuntimeError(
            "[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed "
            "writing file data/0: file write failed"
        )
    if kind == "caused":
        error = RuntimeError("could not save")
        error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
        return error
    error = RuntimeError("could not save")
    error.__context__ = OSError(errno.ENOSPC, "No space left on device")
    return error


@pytest.mark.parametrize(
    "kind", ["orbax", "descriptors", "tensorflow", "torch", "caused", "context"]
)
def test_a_full_disk_is_recognised_however_it_is_dressed_up(tmp_path, kind):
    store = filled(tmp_path, 20)
    original = raised_by_a_backend(kind)

    def write(staging):
        Path(staging, "half").write_bytes(b"x")
        raise original

    with pytest.raises(CheckpointWriteError) as caught:
        commit(store, Progress(30, 3, 0), write)
    assert caught.value.__cause__ is original
    assert leftovers(tmp_path) == []


def test_an_error_after_a_fruitless_look_for_a_file_is_not_the_disks(tmp_path):
    """`except FileNotFoundError: raise TypeError(...)` is a bug, not a full disk."""

    def write(staging):
        try:
            Path(staging, "optional").read_bytes()
        except FileNotFoundError:
            raise TypeError("a bug")  # noqa: B904

    with pytest.raises(TypeError, match="a bug"):
        commit(Store(tmp_path), Progress(1, 0, 1), write)


def test_what_is_asked_for_after_a_failed_save_is_the_one_before(tmp_path):
    store = filled(tmp_path, 20)
    failing = before_disk_calls(at_call(3, fail(errno.ENOSPC)))
    with pytest.raises(CheckpointWriteError), failing:
        commit(store, Progress(30, 3, 0), writer(30))
    with pytest.raises(CheckpointNotFoundError, match="20"):
        verified(store, 30)
