"""Large files are on their way to the disk before they are whole."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.checkpoint_samples import commit

from resilient.errors import CheckpointWriteError
from resilient.progress import Progress
from resilient.storage.files import Flush
from resilient.storage.store import Store

pytestmark = pytest.mark.once


@pytest.fixture
def flushed(monkeypatch):
    """Sizes that files had when they were flushed, by name."""
    sizes: dict[str, list[int]] = {}

    def fdatasync(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        sizes.setdefault(name, []).append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return sizes


def write_slowly(directory, name, pieces, size):
    with open(directory / name, "wb", buffering=0) as file:
        for _ in range(pieces):
            file.write(bytes(size))
            time.sleep(0.03)


def test_what_grows_is_flushed_and_the_rest_is_not(tmp_path, flushed):
    (tmp_path / "inner").mkdir()
    with ThreadPoolExecutor(1) as beside:
        flush = Flush(tmp_path, beside)
        write_slowly(tmp_path, "small", 4, 1 << 10)
        write_slowly(tmp_path / "inner", "large", 4, 9 << 20)
        flush.finish()
    assert list(flushed) == ["large"]
    assert flushed["large"] == sorted(set(flushed["large"]))
    assert len(flushed["large"]) >= 2


def test_a_flush_that_fails_fails_the_save(tmp_path, monkeypatch):
    """Linux tells it once: the last fsync would know of nothing."""

    def fdatasync(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    def write(staging):
        with open(os.path.join(staging, "large"), "wb") as file:
            file.write(bytes(10 << 20))
            file.flush()
            time.sleep(0.1)

    with pytest.raises(CheckpointWriteError, match="EIO"):
        commit(Store(tmp_path), Progress(1, 0, 1), write)
    assert list(tmp_path.iterdir()) == []
