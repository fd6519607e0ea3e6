"""Reading a checkpoint while it is being verified: what is damaged is never used."""

import errno
import os

import pytest
from checkpoint_samples import filled

from resilient.checkpoints import checkpoint as module
from resilient.checkpoints.checkpoint import Checkpoint, DamageError
from resilient.checkpoints.store import Store
from resilient.errors import CorruptCheckpointError
from resilient.progress import Progress

LARGE = module._SMALL + 1


@pytest.fixture
def store(tmp_path):
    """Two checkpoints, each with a small and a large file."""

    def write(staging):
        for name, size in (("small", 10), ("large", LARGE)):
            with open(os.path.join(staging, name), "wb") as file:
                file.write(os.urandom(size))

    store = Store(tmp_path)
    for step in (10, 20):
        store.commit(
            Progress(step, 0, step), write, metrics={}, finished=False, environment={}
        )
    return store


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def read_large(checkpoint, verified):
    return (checkpoint.path / "large").read_bytes()


def test_what_was_read_comes_with_the_checkpoint(store):
    checkpoint, content = store.load_newest(read_large)
    assert checkpoint.step == 20
    assert content == (checkpoint.path / "large").read_bytes()
    assert store.load(10, read_large)[0].step == 10


@pytest.mark.parametrize("name", ["small", "large"])
def test_what_was_read_of_a_damaged_one_is_thrown_away(store, name):
    """The one before is read in its place; the damaged one goes to quarantine."""
    flip(store.directory / "step-00000020" / name)
    reads, reports = [], []

    def read(checkpoint, verified):
        reads.append(checkpoint.step)
        return checkpoint.step

    checkpoint, step = store.load_newest(read, lambda *line: reports.append(line))
    assert (checkpoint.step, step) == (10, 10)
    # Small files say what is in the large ones: damaged, nothing is read at all.
    assert reads == ([10] if name == "small" else [20, 10])
    assert reports == [
        ("step-00000020", f"{name} has other content than was written (checksum)")
    ]
    assert (store.directory / "quarantine" / "step-00000020-1").is_dir()


def test_an_error_of_the_reader_is_the_damages_fault(store):
    """Whatever a format's own tool says of damaged bytes."""

    def read(checkpoint, verified):
        if checkpoint.step == 20:
            raise ValueError("not a checkpoint of mine")
        return "good"

    flip(store.directory / "step-00000020" / "large")
    assert store.load_newest(read)[1] == "good"


def test_an_error_of_the_reader_is_its_own_if_nothing_is_damaged(store):
    def read(checkpoint, verified):
        raise ValueError("not a checkpoint of mine")

    with pytest.raises(ValueError, match="of mine"):
        store.load_newest(read)
    assert not (store.directory / "quarantine").exists()


def test_a_reader_may_wait_until_all_is_verified(store):
    """It is not given a damaged file to map."""
    flip(store.directory / "step-00000020" / "large")
    mapped = []

    def read(checkpoint, verified):
        verified()
        mapped.append(checkpoint.step)

    store.load_newest(read)
    assert mapped == [10]


def test_a_chosen_checkpoint_that_is_damaged_stays_where_it_is(store):
    flip(store.directory / "step-00000010" / "large")
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        store.load(10, read_large)
    assert (store.directory / "step-00000010").is_dir()


def test_a_disk_that_cannot_give_a_file_back_is_damage(store, monkeypatch):
    real = module.record

    def record(path):
        if path.name == "large" and "20" in path.parent.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(module, "record", record)
    assert store.load_newest(lambda checkpoint, verified: checkpoint.step)[1] == 10


def test_the_large_files_are_verified_beside_the_reading(store, monkeypatch):
    """Not before, and not after: each is fetched from the disk once."""
    import threading

    reading = threading.Event()
    real = module.record

    def record(path):
        assert path.name != "large" or reading.wait(30)
        return real(path)

    def read(checkpoint, verified):
        reading.set()

    monkeypatch.setattr(module, "record", record)
    store.load_newest(read)


def test_a_checkpoint_without_large_files_is_verified_before_it_is_read(tmp_path):
    store = filled(tmp_path, 10)
    (store.directory / "step-00000010" / "run.json").unlink()
    checkpoint = Checkpoint.read(store.directory / "step-00000010")
    with pytest.raises(DamageError, match=r"run\.json is missing"):
        checkpoint.load(read_large)
