"""No byte of a backend's files changes unnoticed: the checkpoint before is used.

The manifest's checksums find it before the backend's library opens a file.
"""

import os
import shutil

import keras
import numpy as np
import pytest
from support.checkpoint_samples import newest_good

import resilient
from resilient.storage.store import Store

AT_MOST = 300  # bytes of all files, in the short session


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two checkpoints of a small model, and the files of the newest one."""
    run = tmp_path_factory.mktemp("trained") / "run"
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    resilient.fit(net, x, x[:, :1], epochs=2, verbose=0, checkpoint_dir=run, keep=2)
    newest = max(run.glob("step-*"))
    return run, [p.relative_to(run) for p in newest.rglob("*") if p.is_file()]


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def problems(run):
    """What there is to say of the newest checkpoint."""
    return Store(run).problems(2)


def check_flipped(run, files, every):
    """Flip each byte that ``every`` chooses, of all files together."""
    places = [(name, at) for name in files for at in range((run / name).stat().st_size)]
    assert problems(run) == []
    for name, at in places[:: every(len(places))]:
        with open(run / name, "r+b", buffering=0) as file:
            (before,) = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([before ^ 0xFF]), at)
            assert problems(run), (name, at)
            os.pwrite(file.fileno(), bytes([before]), at)
    assert problems(run) == []


def test_a_flipped_byte_is_noticed(trained, run):
    check_flipped(run, trained[1], lambda count: -(-count // AT_MOST))


@pytest.mark.long
def test_every_flipped_byte_is_noticed(trained, run):
    check_flipped(run, trained[1], lambda _: 1)


def cut(path, other):
    os.truncate(path, path.stat().st_size // 2)


def remove(path, other):
    path.unlink()


def swap(path, other):
    path.rename(f"{path}-")
    other.rename(path)
    os.rename(f"{path}-", other)


@pytest.mark.parametrize("damage", [cut, remove, swap])
def test_the_checkpoint_before_is_used(trained, tmp_path, damage):
    files = trained[1]
    for number, name in enumerate(files):
        run = shutil.copytree(trained[0], tmp_path / str(number))
        damage(run / name, run / files[number - 1])
        lines = []
        assert (
            newest_good(Store(run), lambda *line, to=lines: to.append(line)).step == 1
        )
        assert [line[0] for line in lines] == ["step-00000002"], name
