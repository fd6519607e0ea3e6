"""Files that two checkpoints share: what is in them, and what their damage takes."""

import os
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
from support.killed_fit import assert_same, ended
from support.shared_files import share_files_of_small_tensors

import resilient
from resilient.saving import record, snapshot
from resilient.storage.prune import Pruner
from resilient.storage.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")
FOLDER = Path(snapshot.VARIABLES, snapshot.UNCHANGED)


@pytest.fixture(autouse=True)
def small_ones_count(monkeypatch):
    share_files_of_small_tensors(monkeypatch.setattr)


class Run:
    """Saves of a frozen, a trained and an occasionally trained variable."""

    def __init__(self, directory, keep=3):
        self.directory = directory
        self.variables = [
            keras.Variable(np.full(shape, k, "float32"), trainable=False)
            for k, shape in enumerate([(64, 8), (32,), (4, 32)])
        ]
        self.frozen, self.trained, self.other = self.variables
        self.step, self.saved = 0, {}
        self.checkpoints = resilient.Checkpoints(directory, self.variables, keep=keep)

    def save(self, times=1):
        for _ in range(times):
            self.step += 1
            self.trained.assign(self.trained + 1)
            self.checkpoints.save(self.step)
            self.saved[self.step] = [np.array(v) for v in self.variables]

    def steps(self):
        return Store(self.directory).steps()

    def folder(self, step):
        return self.directory / f"step-{step:08d}" / FOLDER

    def inode(self, step):
        """Of a file with unchanged tensors; None without one."""
        names = [path for path in self.folder(step).rglob("*") if path.is_file()]
        assert not names or {os.stat(path).st_size for path in names} != {0}
        return max(names, key=os.path.getsize).stat().st_ino if names else None

    def read(self, step):
        _, state = Store(self.directory).load(step, reader())
        return [np.asarray(state.tensors[name]) for name in sorted(state.tensors)]

    def assert_exact(self):
        for step in self.steps():
            for read, saved in zip(self.read(step), self.saved[step], strict=True):
                assert np.array_equal(read, saved)


def reader():
    return record.PartReader(resilient.backends.get_backend())


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    with run.checkpoints:
        yield run


def test_files_are_linked_from_the_checkpoint_before_the_last(run):
    inodes = {}
    for step in range(1, 9):
        run.save()
        inodes[step] = run.inode(step)
        run.assert_exact()
    assert inodes[1] is None  # nothing to compare with
    assert inodes[2] != inodes[3]
    for step in range(4, 9):
        assert inodes[step] == inodes[step - 2]
    assert Store(run.directory).problems(8) == []


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(n, marks=[pytest.mark.spread] * (n in (1, 5)))
        for n in (1, 2, 5, 100)
    ],
)
def test_neighbours_share_nothing_and_three_nothing_either(tmp_path, keep):
    run = Run(tmp_path / "run", keep=keep)
    with run.checkpoints:
        for _ in range(30):
            run.save()
            inodes = [run.inode(step) for step in run.steps()[1:]]
            assert all(one != other for one, other in pairwise(inodes))
            assert max(Counter(inodes).values(), default=0) <= 2
    run.assert_exact()


def test_what_changes_leaves_and_comes_back(run):
    run.save(4)
    expected = run.inode(4)
    run.other.assign(run.other * 2)
    run.save()
    assert run.inode(5) != expected
    run.save(20)  # every 16 saves, tensors that changed are compared once more
    run.assert_exact()
    run.frozen.assign(run.frozen + 1)
    run.other.assign(run.other + 1)
    run.save()
    assert run.inode(run.step) is None
    run.assert_exact()


def test_a_change_of_one_bit_is_seen(run):
    run.save(5)
    value = np.array(run.frozen)
    value[63, 7] = np.nextafter(value[63, 7], 1)
    run.frozen.assign(value)
    run.save(4)
    run.assert_exact()


def test_what_torch_does_not_count_as_a_change_is_seen(run):
    if keras.backend.backend() != "torch":
        pytest.skip("others have no such views")
    run.save(5)
    run.frozen.value.data.numpy()[5, 5] = 7
    run.save(4)
    run.assert_exact()


def test_what_tensorflow_does_not_see_is_seen(tmp_path):
    """A variable that has the memory of an array."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("others copy, or cannot be written to")
    import tensorflow as tf

    memory = np.empty(4096 + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    array = memory[start : start + 4096].view("float32")
    array[:] = 0
    variable = tf.Variable(np.zeros(1024, "float32"))
    variable.assign(tf.experimental.dlpack.from_dlpack(array.__dlpack__()))
    with resilient.Checkpoints(tmp_path / "run", [variable]) as checkpoints:
        for step in range(1, 5):
            checkpoints.save(step)
        array[5] = 7
        assert variable.numpy()[5] == 7
        checkpoints.save(5)
        variable.assign(tf.zeros(1024))
        checkpoints.restore()
    assert variable.numpy()[5] == 7


def damage(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            content = bytearray(path.read_bytes())
            content[-100] ^= 1
            path.write_bytes(content)


def test_damage_is_not_handed_on(run, caplog):
    run.save(5)
    damage(run.folder(4))
    run.save(4)
    assert "is damaged" in caplog.text
    store = Store(run.directory)
    assert [store.problems(step) for step in run.steps()] == [[], [], []]
    run.assert_exact()


def test_a_key_that_is_set_later_signs_no_damage(run, monkeypatch):
    run.save(4)
    damage(run.folder(3))
    monkeypatch.setenv("RESILIENT_KEY", "k" * 32)
    run.save()
    assert np.array_equal(run.read(5)[0], run.saved[5][0])


def test_what_is_left_when_one_between_them_is_deleted_shares_nothing(run, monkeypatch):
    """Such as the best and the newest; a kill leaves all of them."""
    run.save(6)

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            Pruner(run.directory).prune(resilient.latest(1), held={4})
    assert run.steps() == [4, 5, 6]
    run.assert_exact()
    Pruner(run.directory).prune(resilient.latest(1), held={4})
    assert run.steps() == [4, 6]
    assert run.inode(4) != run.inode(6)
    run.assert_exact()


def test_what_shares_a_file_that_cannot_be_copied_keeps_what_is_between(
    run, monkeypatch, caplog
):
    """A bad sector, or a full disk: everything else is deleted nevertheless."""
    run.save(6)

    def fail(*args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", fail)
        run.checkpoints._keep = resilient.latest(1)
        run.save()
        assert run.steps() == [7]
        run.checkpoints._keep = resilient.latest(3)
        run.save(3)
        assert Pruner(run.directory).prune(resilient.latest(1), held={8}) == []
    assert "cannot be copied" in caplog.text
    assert Pruner(run.directory).prune(resilient.latest(1), held={8}) == [9]
    assert run.inode(8) != run.inode(10)
    run.assert_exact()


def test_damage_is_not_copied_to_a_new_neighbour(run, caplog):
    run.save(6)
    damage(run.folder(6))  # and with it that of 4
    Pruner(run.directory).prune(resilient.latest(1), held={4})
    assert "does not match its checksum" in caplog.text
    assert run.steps() == [4, 5, 6]
    assert Store(run.directory).problems(5) == []


def test_a_planted_link_is_not_written_through(run, tmp_path):
    run.save(6)
    (tmp_path / "other").write_text("somebody's")
    for path in [*run.folder(6).rglob("*")]:
        if path.is_file():
            path.with_name(f"{path.name}.own").symlink_to(tmp_path / "other")
    Pruner(run.directory).prune(resilient.latest(1), held={4})
    assert (tmp_path / "other").read_text() == "somebody's"
    assert run.inode(4) != run.inode(6)
    assert Store(run.directory).problems(6) == []


def test_one_that_is_not_signed_and_its_new_neighbour_share_nothing(run, monkeypatch):
    """It is kept, and used again once no key is set."""
    run.save(5)
    shutil.rmtree(run.directory / "step-00000003")  # which shares one with step 5
    monkeypatch.setenv("RESILIENT_KEY", "k" * 32)
    run.save(2)
    assert run.inode(5) == run.inode(7)
    Pruner(run.directory).prune(resilient.latest(1))
    assert run.steps()[-2:] == [5, 7]
    assert run.inode(5) != run.inode(7)
    monkeypatch.delenv("RESILIENT_KEY")
    run.assert_exact()


def test_the_same_step_again_and_a_lower_one_link_nothing(tmp_path):
    run = Run(tmp_path / "run", keep=10)
    with run.checkpoints:
        run.save(5)
        run.step = 4
        run.save()
        assert run.inode(5) not in {run.inode(4), run.inode(3)}
        run.step = 20
        run.save(4)
        run.step = 21
        run.save()
        inodes = [run.inode(step) for step in run.steps()[1:]]
        assert all(one != other for one, other in pairwise(inodes))
        run.assert_exact()


def test_damage_to_a_shared_file_leaves_the_checkpoint_before(run):
    run.save(6)
    assert run.inode(6) == run.inode(4) != run.inode(5)
    for path in run.folder(6).rglob("*"):
        if path.is_file() and path.stat().st_size > 1000:
            path.write_bytes(bytes(path.stat().st_size))
    store = Store(run.directory)
    assert store.problems(4)
    assert store.problems(6)
    assert store.problems(5) == []
    other = Run(run.directory)
    run.checkpoints.__exit__(None, None, None)
    with other.checkpoints:
        assert other.checkpoints.restore() == 5
    for restored, saved in zip(other.variables, run.saved[5], strict=True):
        assert np.array_equal(np.array(restored), saved)


def test_another_process_begins_with_its_own_files(run):
    run.save(5)
    before = {run.inode(step) for step in run.steps()}
    run.checkpoints.__exit__(None, None, None)
    other = Run(run.directory, keep=9)  # the number of a deleted file is used again
    with other.checkpoints:
        other.step = other.checkpoints.restore()
        other.save(3)
        assert other.inode(6) is None
        assert not before & {other.inode(7), other.inode(8)}
        assert np.array_equal(other.read(8)[0], other.saved[8][0])


def test_without_links_they_are_written(run, monkeypatch):
    def link(*args, **kwargs):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    run.save(8)
    assert len({run.inode(step) for step in run.steps()}) == len(run.steps())
    run.assert_exact()


def test_links_that_are_not_counted_are_not_used(run, monkeypatch):
    monkeypatch.setattr(os, "link", lambda old, new, **_: shutil.copy(old, new))
    run.save(8)
    assert len({run.inode(step) for step in run.steps()}) == len(run.steps())
    run.assert_exact()


def test_a_checkpoint_that_was_moved_is_not_linked_from(run):
    run.save(5)
    store = Store(run.directory)
    store.discard_after(4)
    run.step = 4
    run.save()  # its neighbour is step 4, which is the one before the last saved
    assert run.inode(5) != run.inode(4)
    run.save()
    assert run.inode(6) not in {run.inode(5), run.inode(4)} - {None}
    run.assert_exact()


def test_a_deleted_checkpoint_is_not_linked_from(run):
    run.save(6)
    shutil.rmtree(run.directory / "step-00000005")
    run.save()
    shutil.rmtree(run.directory / "step-00000007")
    run.save()
    assert run.inode(8) != run.inode(6)
    run.assert_exact()


def test_a_replaced_file_is_not_linked(run):
    run.save(6)
    for path in run.folder(5).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content + b"x")
    run.save()
    assert run.inode(7) != run.inode(5)
    assert Store(run.directory).problems(7) == []


def test_a_full_disk_while_files_are_linked_loses_nothing(run, monkeypatch):
    run.save(6)
    make = os.mkdir

    def full(path, *args, **kwargs):
        if snapshot.UNCHANGED in os.fspath(path):
            raise OSError(28, "No space left on device")
        make(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with pytest.raises(resilient.CheckpointWriteError):
            run.save()
    run.step += 1
    run.save(2)
    run.assert_exact()


def test_a_key_signs_what_is_linked(run, monkeypatch):
    run.save(4)
    monkeypatch.setenv("RESILIENT_KEY", "k" * 32)
    run.save(6)
    assert np.array_equal(run.read(run.step)[0], run.saved[run.step][0])


def test_a_file_that_is_missing_is_damage(run):
    run.save(4)
    shutil.rmtree(run.folder(4))
    assert "is missing" in str(Store(run.directory).problems(4))


SCRIPT = """
import sys
import keras
from support import fitting, killed_fit
from support.shared_files import share_files_of_small_tensors
from support.waited import wait_for_each_save

def model(**given):
    keras.utils.set_random_seed(5)
    layers = fitting.layers(width=64)
    layers[1].trainable = False
    net = keras.Sequential(layers)
    net.compile("adam", loss="mse", run_eagerly=True)
    return net

fitting.model = model
share_files_of_small_tensors()
killed_fit.wait_for_the_first_save = wait_for_each_save  # the second has such files
killed_fit.train(*sys.argv[1:])
"""


@pytest.mark.spread
def test_a_run_is_killed_and_resumed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    _, expected = ended(script, tmp_path / "whole")
    for kill in (9, 5):
        ended(script, tmp_path / "run", kill)
    folders = list((tmp_path / "run").glob(f"step-*/{FOLDER}"))
    assert folders, os.listdir(tmp_path / "run")
    assert_same(ended(script, tmp_path / "run")[1], expected)
