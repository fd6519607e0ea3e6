"""What a stranger can write in the place of TensorFlow's files: an error, no more."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gang import run_alone
from support.leveldb import MAGIC, block, crc32c, table, varint

from resilient.backends import get_backend
from resilient.backends.stored_files import Listed
from resilient.errors import CorruptCheckpointError, NotSupportedError

if os.environ["KERAS_BACKEND"] != "tensorflow":
    pytest.skip("about TensorFlow", allow_module_level=True)

from tensorflow.core.protobuf.tensor_bundle_pb2 import (
    BundleEntryProto,
    BundleHeaderProto,
)

KEY = b"tensors/a/.ATTRIBUTES/VARIABLE_VALUE"
GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
DATA = "state.data-00000-of-00001"


def header(shards: int = 1) -> tuple[bytes, bytes]:
    return b"", BundleHeaderProto(num_shards=shards).SerializeToString()


def entry(**changed: Any) -> bytes:
    """Of a tensor of six float32 at the beginning of the data."""
    shape = changed.pop("shape", (3, 2))
    proto = BundleEntryProto(
        **{"dtype": 1, "offset": 0, "size": 24, "crc32c": crc32c(bytes(24))} | changed
    )
    for size in shape:
        proto.shape.dim.add().size = size
    return proto.SerializeToString()


def write(directory: Path, index: bytes, data: bytes = bytes(24)) -> None:
    (directory / "state.index").write_bytes(index)
    (directory / DATA).write_bytes(data)


def read(directory: Path, files: dict[str, Listed] | None = None) -> dict[str, Any]:
    return get_backend("tensorflow").read(str(directory), files=files)


def refused(directory: Path) -> str:
    sizes = {path.name: Listed(path.lstat().st_size) for path in directory.iterdir()}
    with pytest.raises(CorruptCheckpointError):
        read(directory)
    with pytest.raises(CorruptCheckpointError) as raised:
        read(directory, sizes)
    return str(raised.value)


def test_the_tables_in_these_tests_are_good_ones(tmp_path: Path) -> None:
    write(tmp_path, table([header(), (KEY, entry())]))
    assert read(tmp_path)["a"].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": (-3, -2)},
        {"shape": (1 << 62, 1 << 62)},
        {"shape": (1 << 62, 1 << 62, 0), "size": 0},
        {"shape": (1 << 40, 2), "size": 1 << 43},
        {"shape": (3,)},
        {"shape": (1,) * 300},
        {"dtype": 7},
        {"dtype": 20},
        {"dtype": 21},
        {"dtype": 11},
        {"dtype": 0},
        {"dtype": 12345},
        {"dtype": 2},
        {"dtype": 101},
        {"size": 25},
        {"size": -24},
        {"offset": 1},
        {"offset": -1},
        {"offset": (1 << 63) - 1},
        {"shard_id": 1},
        {"shard_id": -1},
        {"slices": [{"extent": [{"start": 0, "length": 3}]}]},
    ],
)
def test_a_tensor_that_is_not_there(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Some of these end the process if TensorFlow reads them."""
    write(tmp_path, table([header(), (KEY, entry(**changed))]))
    refused(tmp_path)


def texts(length: int, size: int, shape: tuple[int, ...] = ()) -> bytes:
    return table([header(), (GRAPH, entry(dtype=7, size=size, shape=shape))])


@pytest.mark.parametrize("length", [1 << 40, (1 << 63) - 1, 0, 20])
def test_a_text_that_is_not_there(tmp_path: Path, length: int) -> None:
    """TensorFlow would take the memory for it before it reads."""
    data = varint(length).ljust(24, b"\0")
    write(tmp_path, texts(length, 24), data)
    refused(tmp_path)
    write(tmp_path, texts(length, 24, (1 << 40,)), data)
    refused(tmp_path)


def test_data_in_another_file(tmp_path: Path) -> None:
    """A FIFO would block, a link lead elsewhere: none is opened."""
    for shard in (1, 2):
        os.mkfifo(tmp_path / f"state.data-{shard:05}-of-00003")
    (tmp_path / "state.data-00000-of-00003").symlink_to("/dev/zero")
    for shard in range(3):
        write(tmp_path, table([header(3), (KEY, entry(shard_id=shard))]))
        assert "regular" in refused(tmp_path)
    (tmp_path / "state.index").unlink()
    os.mkfifo(tmp_path / "state.index")
    assert "regular" in refused(tmp_path)


def good() -> bytes:
    return table([header(), (KEY, entry())])


MANY = [header(), (KEY, entry())]
START = 3 + len(header()[1])  # of the second
NAMED = [(b"%03d" % number, entry()) for number in range(200)]
INDICES = {
    "empty": b"",
    "short": good()[-47:],
    "no-magic": good()[:-1] + b"\0",
    "no-header": table([(KEY, entry())]),
    "no-shards": table([header(0), (KEY, entry())]),
    "negative-shards": table([header(-1), (KEY, entry())]),
    "no-entries": table([]),
    "order": table([header(), (b"b", entry()), (b"a", entry())]),
    "twice": table([header(), (KEY, entry()), (KEY, entry())]),
    "no-protocol-buffer": table([header(), (KEY, b"\xff" * 9)]),
    "no-utf-8": table([header(), (b"\xff", entry())]),
    "restart-inside": table([header(), (KEY, entry())], (0, 7)),
    "restart-outside": table([header(), (KEY, entry())], (0, 1 << 30)),
    "restarts-in-no-order": table(MANY, (0, 0, START)),
    "first-is-no-restart": table(MANY, (START,)),
    "a-restart-is-far": table([(b"", header()[1]), *NAMED]),
    "compressed": table([header(), (KEY, entry())], (0,), b"\1"),
    "far": bytes(8) + varint(1 << 62).ljust(40, b"\0") + struct.pack("<Q", MAGIC),
    "endless-number": b"\xff" * 40 + struct.pack("<Q", MAGIC),
    "cut": good()[20:],
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_that_is_none(tmp_path: Path, case: str) -> None:
    write(tmp_path, INDICES[case])
    refused(tmp_path)


def test_more_tensors_than_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are neither read nor saved."""
    snapshot = get_backend().snapshot(SOME)
    (tmp_path / "good").mkdir()
    snapshot.write(str(tmp_path / "good"))
    monkeypatch.setattr("resilient.backends.arrays.MOST_TENSORS", len(SOME) - 1)
    (tmp_path / "more").mkdir()
    with pytest.raises(NotSupportedError, match=r"at most 2 tensors"):
        snapshot.write(str(tmp_path / "more"))
    assert os.listdir(tmp_path / "more") == []
    monkeypatch.setattr("resilient.backends.bundle.MOST_TENSORS", len(SOME) - 1)
    assert "too many" in refused(tmp_path / "good")


def test_names_that_repeat_each_other(tmp_path: Path) -> None:
    """Each adds a byte to a long one: a small file, and terabytes of names."""
    long = b"x" * (1 << 20)
    body = varint(0) + varint(len(long)) + varint(0) + long
    body += (varint(len(long)) + varint(1) + varint(0) + b"y") * 2000
    body += struct.pack("<II", 0, 1)
    data = body + b"\0" + struct.pack("<I", crc32c(b""))
    index = block([(b"\xff", varint(0) + varint(len(body)))])
    footer = varint(0) + varint(0) + varint(len(data)) + varint(len(index) - 5)
    whole = data + index + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)
    write(tmp_path, whole)
    assert "names" in refused(tmp_path)


def test_tensors_in_one_place_of_a_file(tmp_path: Path) -> None:
    """TensorFlow writes none, and each would be read into memory of its own."""
    others = [(KEY.replace(b"/a/", b"/%c/" % c), entry()) for c in b"bcd"]
    write(tmp_path, table([header(), (KEY, entry()), *others]), bytes(24 * 4))
    assert "same place" in refused(tmp_path)


SOME = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2)), "c": np.int32(1)}
FUZZ = """
import random, sys
from pathlib import Path
from resilient.backends import get_backend
from resilient.errors import CorruptCheckpointError

directory, backend = Path(sys.argv[1]), get_backend("tensorflow")
for seed in range(150):
    chance = random.Random(seed)
    names = ["state.index"] * 3 + ["state.data-00000-of-00001"]
    path = directory / chance.choice(names)
    good = path.read_bytes()
    content = bytearray(good)
    for _ in range(chance.choice([1, 3, 20])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content[: chance.choice([len(content), len(content) // 2])])
    try:
        found = backend.read(str(directory))
    except CorruptCheckpointError:
        pass
    else:
        assert sum(array.nbytes for array in found.values()) <= 60, seed
    path.write_bytes(good)
"""


def test_bytes_that_were_changed(tmp_path: Path) -> None:
    """In a process of its own: TensorFlow could end it."""
    script = tmp_path / "fuzz.py"
    script.write_text(FUZZ)
    get_backend("tensorflow").snapshot(SOME).write(str(tmp_path))
    status, told = run_alone(script, tmp_path, timeout=240)
    assert status == 0, told[-2000:]
