"""Reading a checkpoint that is verified: what is damaged is never used."""

import errno
import logging
import os

import numpy as np
import pytest
from support import fitting
from support.checkpoint_samples import commit, filled

from resilient.errors import CorruptCheckpointError, UntrustedCheckpointError
from resilient.progress import Progress
from resilient.storage import checkpoint as module
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.manifest import Signature
from resilient.storage.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


@pytest.fixture
def store(tmp_path):
    """Two checkpoints, each with two files."""

    def write(staging):
        for name in ("one", "other"):
            with open(os.path.join(staging, name), "wb") as file:
                file.write(os.urandom(1000))

    store = Store(tmp_path)
    for step in (10, 20):
        commit(store, Progress(step, 0, step), write)
    return store


def flip(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


def read_other(checkpoint):
    return (checkpoint.path / "other").read_bytes()


def test_what_was_read_comes_with_the_checkpoint(store):
    checkpoint, content = store.load_newest(read_other)
    assert checkpoint.step == 20
    assert content == (checkpoint.path / "other").read_bytes()
    assert store.load(10, read_other)[0].step == 10


@pytest.mark.parametrize("name", ["one", "other"])
def test_a_damaged_one_is_not_read_at_all(store, name):
    """A reader may map it; the one before is read, the damaged one put aside."""
    flip(store.directory / "step-00000020" / name)
    reads, reports = [], []

    def read(checkpoint):
        reads.append(checkpoint.step)
        return checkpoint.step

    checkpoint, step = store.load_newest(read, lambda *line: reports.append(line))
    assert (checkpoint.step, step) == (10, 10)
    assert reads == [10]
    assert reports == [("step-00000020", f"{name} does not match its checksum")]
    assert (store.directory / "quarantine" / "step-00000020-1").is_dir()


def test_an_error_of_the_reader_is_the_damages_fault(store):
    """Whatever a format's own tool says of damaged bytes."""

    def read(checkpoint):
        if checkpoint.step == 20:
            flip(checkpoint.path / "other")
            raise ValueError("not a checkpoint of mine")
        return "good"

    assert store.load_newest(read)[1] == "good"


def test_an_error_of_the_reader_is_its_own_if_nothing_is_damaged(store):
    def read(checkpoint):
        raise ValueError("not a checkpoint of mine")

    with pytest.raises(ValueError, match="of mine"):
        store.load_newest(read)
    assert not (store.directory / "quarantine").exists()


def test_a_chosen_checkpoint_that_is_damaged_stays_where_it_is(store):
    flip(store.directory / "step-00000010" / "other")
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        store.load(10, read_other)
    assert (store.directory / "step-00000010").is_dir()


def test_a_disk_that_cannot_give_a_file_back_is_damage(store, monkeypatch):
    real = module.open_file

    def open_file(directory, name):
        if name == "other" and "20" in directory.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(directory, name)

    monkeypatch.setattr(module, "open_file", open_file)
    assert store.load_newest(read_other)[0].step == 10


def test_a_missing_file_is_damage(tmp_path):
    store = filled(tmp_path, 10)
    (store.directory / "step-00000010" / "run.json").unlink()
    checkpoint = Checkpoint.read(store.directory / "step-00000010")
    with pytest.raises(DamageError, match=r"run\.json is missing"):
        checkpoint.load(read_other)


@pytest.mark.waits
@pytest.mark.parametrize(
    "at",
    [
        0,
        pytest.param(0.3, marks=pytest.mark.spread),
        pytest.param(0.7, marks=pytest.mark.spread),
        0.999,
    ],
)
def test_one_flipped_bit_in_the_tensors_and_the_checkpoint_before_is_used(
    tmp_path, caplog, at
):
    """With each format: of TensorFlow's, the operation that reads it compares."""
    net = fitting.model()
    before = fitting.fit(net, tmp_path, epochs=2, keep=2)
    newest = max(tmp_path.glob("step-*"))
    files = [path for path in (newest / "variables").rglob("*") if path.is_file()]
    flip(max(files, key=lambda path: path.stat().st_size), at)
    again = fitting.model()
    with caplog.at_level(logging.WARNING, "resilient"):
        after = fitting.fit(again, tmp_path, epochs=2, keep=2)
    assert f"{newest.name} is damaged, so it is skipped" in caplog.text
    fitting.assert_equal(net, again)
    assert np.array_equal(before.history["loss"], after.history["loss"])


@pytest.mark.spread
def test_a_run_with_a_key_resumes_from_what_is_signed_only(tmp_path, monkeypatch):
    """With each format; and the key is in no file that the run leaves."""
    key = "canary-0123456789abcdef"
    monkeypatch.setenv("RESILIENT_KEY", key)
    for epochs in (1, 2):
        fitting.fit(fitting.model(), tmp_path, epochs=epochs, keep=2)
    signatures = {found.signature for found in Store(tmp_path).checkpoints()}
    assert signatures == {Signature.OURS}
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 4
    assert not any(key.encode() in path.read_bytes() for path in written)
    monkeypatch.delenv("RESILIENT_KEY")
    fitting.fit(fitting.model(), tmp_path, epochs=3, keep=2)
    monkeypatch.setenv("RESILIENT_KEY", key)
    with pytest.raises(UntrustedCheckpointError):
        fitting.fit(fitting.model(), tmp_path, epochs=4, keep=2)
