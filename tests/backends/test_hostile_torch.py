"""What a stranger can write in the place of torch's files: it is an error, no more."""

import io
import os
import pickle
import shutil
import struct
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import CorruptCheckpointError, NotSupportedError

if os.environ["KERAS_BACKEND"] != "torch":
    pytest.skip("about torch", allow_module_level=True)

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
)

from resilient.backends import (
    dcp_metadata,
    dcp_stored,
    torch_files,
    written_elsewhere,
)
from resilient.backends.dcp_chunks import StoredTensor

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
COMMAND = "touch SEEN"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + b"(" + b"".join(arguments) + b"tR"


class Reduces:
    def __init__(self, *reduced: object) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[object, ...]:
        return self.reduced


GETATTR = name("builtins", "getattr")
METADATA = name("torch.distributed.checkpoint.metadata", "Metadata")
GLOBALS = name("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__")
DEEP = b"(" * 100_000 + b")" + b"t" * 100_000
PICKLES = {
    "global": b"cos\nsystem\n(" + text(COMMAND) + b"tR.",
    "stack-global": call(name("posix", "system"), text(COMMAND)) + b".",
    "inst": b"(S'touch SEEN'\nios\nsystem\n.",
    "obj": b"(" + name("os", "system") + text(COMMAND) + b"o.",
    "newobj": name("subprocess", "Popen") + text(COMMAND) + b"\x85\x81.",
    "newobj-ex": name("subprocess", "Popen") + b")}\x92.",
    "extension": b"\x82\x01.",
    "persistent": b"Pos.system\n.",
    "binary-persistent": text(COMMAND) + b"Q.",
    "eval": call(name("builtins", "eval"), text("__import__('os').mkdir('SEEN')")),
    "getattr": call(call(GETATTR, name("os", "path"), text("os")), text(COMMAND))
    + b".",
    "nested-names": GLOBALS + b".",
    "torch-load": call(name("torch.serialization", "load"), text("SEEN")) + b".",
    "build-of-a-class": METADATA + b"N}" + text("__setstate__") + METADATA + b"s\x86b.",
    "build-calls": METADATA + b")\x81" + name("os", "system") + b"b.",
    "calls-a-result": call(call(METADATA), text(COMMAND)) + b".",
    "reduce-ex": pickle.dumps(Reduces(os.mkdir, ("SEEN",))),
    "memo-bomb": b"Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "long-string": b"\x8d" + struct.pack("<Q", 2**62) + b"a.",
    "long-integer": b"\x8b" + struct.pack("<i", 2**31 - 1) + b"1.",
    "decimal-integer": b"I" + b"9" * 100_000 + b"\n.",
    "frame": b"\x95" + struct.pack("<Q", 2**62) + b"N.",
    "hash-bomb": b"}N" + b"\x85q\x00h\x00h\x00\x86" * 60 + b"Ns.",
    "deep": DEEP + b".",
    "deep-in-place": b"}" + text("kernel") + DEEP + b"s.",
    "list-in-itself": b"]q\x00h\x00a.",
    "pops": b"0.",
    "no-mark": b"t.",
    "no-memo": b"h\x05.",
    "no-end": b"}",
    "two-values": b"NN.",
    "empty": b"",
    "number": b"K\x01.",
    "names": b"}" + text("a") + name("torch", "float32") + b"s.",
    "number-as-name": b"}K\x01K\x02s.",
    "buffer": b"\x97.",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is where commands are run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    return tmp_path / "saved"


def refused(directory: Path) -> str:
    sizes = {
        path.relative_to(directory).as_posix(): Listed(path.lstat().st_size)
        for path in directory.rglob("*")
    }
    read = partial(read_all, directory)
    with pytest.raises(CorruptCheckpointError):
        read(None)
    with pytest.raises(CorruptCheckpointError) as raised:
        read(sizes)
    assert not Path("SEEN").exists()
    return str(raised.value)


def read_all(directory: Path, files: dict[str, Listed] | None = None) -> None:
    """What stays on the disk, too, until it is asked for."""
    for each in get_backend("torch").read(str(directory), files=files).values():
        np.asarray(each)


def archive(content: bytes, **changed: bytes) -> bytes:
    """A file of torch's with another pickle, and other entries."""
    entries = {"data.pkl": content, "byteorder": sys.byteorder.encode()}
    entries |= {"version": b"3", "data/0": bytes(24)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for entry, data in (entries | changed).items():
            opened.writestr(f"archive/{entry}", data)
    return file.getvalue()


def saved_by_dcp(directory: Path) -> Metadata:
    dcp.save(
        {"a": torch.ones(3, 2), "b": torch.zeros(4)},
        checkpoint_id=directory,
        no_dist=True,
    )
    return pickle.loads((directory / ".metadata").read_bytes())


def test_what_ranks_wrote_is_read_without_torch(here: Path) -> None:
    saved_by_dcp(here)
    files = {path.name: Listed(path.stat().st_size) for path in here.iterdir()}
    found = written_elsewhere.tensors("torch", here, files, piecewise=True)
    assert found["a"].shape == (3, 2)
    assert np.asarray(found["a"]).tolist() == [[1, 1]] * 3
    assert np.asarray(found["b"]).tolist() == [0] * 4


@pytest.mark.parametrize("case", PICKLES)
def test_no_pickle_is_more_than_data(here: Path, case: str) -> None:
    """Alone, in the metadata of several ranks, and in a tensor's file."""
    (here / "state.pt").write_bytes(PICKLES[case])
    refused(here)
    (here / "state.pt").write_bytes(archive(PICKLES[case]))
    refused(here)
    (here / ".metadata").write_bytes(PICKLES[case])
    refused(here)


@pytest.mark.parametrize("case", ["global", "reduce-ex", "build-of-a-class", "deep"])
def test_nor_is_one_in_a_tensor_of_several_ranks(here: Path, case: str) -> None:
    metadata = saved_by_dcp(here)
    hostile = archive(PICKLES[case])
    (here / "__0_0.distcp").write_bytes(hostile)
    for info in metadata.storage_data.values():
        info.offset, info.length = 0, len(hostile)
    metadata.state_dict_metadata.pop("b")
    metadata.storage_data = {
        index: info for index, info in metadata.storage_data.items() if index.fqn == "a"
    }
    (here / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "__0_0.distcp" in refused(here)


def tensor(
    shape: tuple[int, ...] = (3, 2),
    strides: tuple[int, ...] = (2, 1),
    offset: int = 0,
    storage: object = ("torch", "FloatStorage"),
    key: str = "0",
    rebuild: str = "_rebuild_tensor_v2",
    rest: tuple[object, ...] = (),
) -> bytes:
    """The pickle of a dict with one tensor."""
    dumped = {value: pickle.dumps(value, 2)[2:-1] for value in (shape, strides, offset)}
    identity = (
        b"(" + text("storage") + name(*storage) + text(key) + text("cpu") + b"K\x06tQ"
    )
    made = call(
        name("torch._utils", rebuild),
        identity,
        *(dumped[value] for value in (offset, shape, strides)),
        b"\x89",
        call(name("collections", "OrderedDict")),
        *(pickle.dumps(each, 2)[2:-1] for each in rest),
    )
    return b"}" + text("kernel") + made + b"s."


def test_the_tensors_in_these_tests_are_good_ones(here: Path) -> None:
    (here / "state.pt").write_bytes(archive(tensor()))
    read = get_backend("torch").read(str(here))
    assert read["kernel"].shape == (3, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"strides": (0, 0), "shape": (1 << 20, 1 << 20)},
        {"shape": (1 << 62, 1 << 62)},
        {"shape": (4, 2)},
        {"offset": 1},
        {"offset": -1},
        {"shape": (-3, -2)},
        {"strides": (1 << 40, 1)},
        {"strides": (-2, 1)},
        {"strides": (1,)},
        {"shape": (1,) * 100, "strides": (1,) * 100},
        {"shape": (True, 2)},
        {"shape": (1.0, 2)},
        {"key": "../0"},
        {"key": "1"},
        {"storage": ("torch", "QInt8Storage")},
        {"storage": ("os", "system")},
        {"storage": ("torch.storage", "UntypedStorage")},
        {"rebuild": "_rebuild_tensor_v3"},
        {"rebuild": "_rebuild_tensor_v3", "rest": ("float32",)},
        {"rebuild": "_rebuild_sparse_tensor"},
        {"rebuild": "_rebuild_meta_tensor_no_storage"},
        {"rest": ({"conj": True},)},
    ],
)
def test_a_tensor_that_its_file_has_not(here: Path, changed: dict[str, object]) -> None:
    (here / "state.pt").write_bytes(archive(tensor(**changed)))
    refused(here)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {1: 2}, {"a": {}}, 3])
def test_no_dict_of_tensors(here: Path, content: object) -> None:
    torch.save(content, here / "state.pt")
    refused(here)


def test_pickles_of_more_than_is_real(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte may make an object, which has sixty."""
    monkeypatch.setattr("resilient.backends.inert_pickle._MOST_OPERATIONS", 1000)
    (here / "state.pt").write_bytes(archive(b"]" * 2000 + b"."))
    assert "operations" in refused(here)
    monkeypatch.setattr("resilient.backends.inert_pickle._MOST_BYTES", 1000)
    assert "bytes" in refused(here)


DOUBLED = b")" + b"q\x00h\x00\x86" * 100  # a pair of a pair of ..., 2**100 in all
DEEP_TUPLE = b")" + b"\x85" * 100_000


@pytest.mark.parametrize("value", [DOUBLED, DEEP_TUPLE], ids=["wide", "deep"])
def test_what_takes_for_ever_to_show_is_not_shown(here: Path, value: bytes) -> None:
    """In the place of a dtype, of a name, and of a file."""
    stored = name("torch.storage", "UntypedStorage")
    of = b"(" + text("storage") + stored + text("0") + text("cpu") + b"K\x01tQ"
    one = b"K\x01\x85"
    rebuild = name("torch._utils", "_rebuild_tensor_v3")
    made = call(rebuild, of, b"K\x00", one, one, b"\x89", b"}", value)
    (here / "state.pt").write_bytes(archive(b"}" + text("a") + made + b"s."))
    assert "unsupported type: tuple" in refused(here)

    checkpoint = "torch.distributed.checkpoint"

    def made_of(kind: str, fields: dict[str, bytes]) -> bytes:
        items = b"".join(text(key) + each + b"s" for key, each in fields.items())
        return name(checkpoint, kind) + b")\x81}" + items + b"b"

    size = call(name("torch", "Size"), b")")
    for fqn, file in ((value, text("x")), (text("a"), value)):
        key = made_of("metadata.MetadataIndex", {"fqn": fqn, "offset": size})
        numbers = {"offset": b"K\x00", "length": b"K\x00"}
        info = made_of("filesystem._StorageInfo", {"relative_path": file} | numbers)
        fields = {"state_dict_metadata": b"}", "storage_data": b"}" + key + info + b"s"}
        (here / ".metadata").write_bytes(made_of("metadata.Metadata", fields) + b".")
        assert "where a name should be" in refused(here)


def test_tensors_that_share_bytes_are_refused(here: Path) -> None:
    """Each is copied in its turn: a small file, and any amount of memory."""
    one = torch.zeros(1000)
    torch.save({"a": one, "b": one}, here / "state.pt")
    assert "larger than it" in refused(here)


def test_tensors_that_share_bytes_are_not_copied_often(here: Path) -> None:
    """Those that a processor cannot read in place are; torch writes none."""
    (here / "state.pt").write_bytes(archive(tensor()))
    files = StoredFiles(str(here), None)
    data = bytes(files.mapped("state.pt"))
    pieces = torch_files._Archive(memoryview(data), "archive/", {})
    view = np.ndarray((5,), np.float32, data, 1)
    for _ in range(len(data) // view.nbytes):
        pieces._aligned(view)
    with pytest.raises(torch_files.TorchFileError, match="larger than the file"):
        pieces._aligned(view)


def test_zip_files_that_are_not_torchs(here: Path) -> None:
    """Compressed, damaged, of another byte order, or of another library."""
    good = archive(tensor())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("archive/data.pkl", tensor())
        opened.writestr("archive/data/0", bytes(1 << 20))
    other = "big" if sys.byteorder == "little" else "little"
    end = len(good) - 22
    overlapping = good[: end + 10] + struct.pack("<H", 60_000) + good[end + 12 :]
    far = good[: end + 16] + struct.pack("<I", 2**32 - 1) + good[end + 20 :]
    long = b"PK\6\7" + bytes(4) + struct.pack("<Q", 2**63) + bytes(4) + good[end:]
    legacy = io.BytesIO()
    torch.save({"a": torch.ones(2)}, legacy, _use_new_zipfile_serialization=False)
    for content in (
        packed.getvalue(),
        archive(tensor(), byteorder=other.encode()),
        overlapping,
        far,
        good[:end] + long,
        legacy.getvalue(),
        good[:-1],
        good[1:],
        b"",
        b"PK\5\6" + bytes(18),
        archive(tensor())[:100],
    ):
        (here / "state.pt").write_bytes(content)
        refused(here)


def leave_the_directory(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = "../outside"


def begin_at_the_root(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = "/etc/passwd"


def name_no_file(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = None


def reach_beyond_the_file(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.length = 1 << 40


def begin_before_the_file(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.offset = -10


def transform(metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]


def claim_more(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].size = torch.Size([1 << 40])


def claim_more_of_nothing(metadata: Metadata) -> None:
    saved = metadata.state_dict_metadata["a"]
    saved.size, saved.chunks = torch.Size([1 << 40, 1 << 40, 0]), []


def claim_too_many_dimensions(metadata: Metadata) -> None:
    saved = metadata.state_dict_metadata["a"]
    saved.size, saved.chunks = torch.Size([1] * 69 + [0]), []


def name_by_a_number(metadata: Metadata) -> None:
    saved = metadata.state_dict_metadata
    saved[5] = saved.pop("b")


def claim_larger_chunks(metadata: Metadata) -> None:
    saved = metadata.state_dict_metadata["a"]
    saved.size = torch.Size([1 << 30, 2])
    saved.chunks = [ChunkStorageMetadata(torch.Size([0, 0]), saved.size)]


def leave_a_gap(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].size = torch.Size([4, 2])


def leave_out_all(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].chunks = []


def repeat_a_chunk(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].chunks *= 2


def take_another_chunk(metadata: Metadata) -> None:
    data = metadata.storage_data
    a, b = (next(i for i in data if i.fqn == each) for each in "ab")
    data[a], data[b] = data[b], data[a]


def take_another_type(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].properties.dtype = torch.int32


def take_a_quantized_type(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"].properties.dtype = torch.qint8


def hold_bytes(metadata: Metadata) -> None:
    metadata.state_dict_metadata["a"] = BytesStorageMetadata()


def have_no_data(metadata: Metadata) -> None:
    metadata.storage_data = None


def have_no_tensors(metadata: Metadata) -> None:
    metadata.state_dict_metadata = 3


def lose_a_tensor(metadata: Metadata) -> None:
    metadata.storage_data = dict(list(metadata.storage_data.items())[1:])


@pytest.mark.parametrize(
    "change",
    [
        leave_the_directory,
        begin_at_the_root,
        name_no_file,
        reach_beyond_the_file,
        begin_before_the_file,
        transform,
        claim_more,
        claim_more_of_nothing,
        claim_too_many_dimensions,
        name_by_a_number,
        claim_larger_chunks,
        leave_a_gap,
        leave_out_all,
        repeat_a_chunk,
        take_another_chunk,
        take_another_type,
        take_a_quantized_type,
        hold_bytes,
        have_no_data,
        have_no_tensors,
        lose_a_tensor,
    ],
)
def test_metadata_of_several_ranks_that_the_files_contradict(
    here: Path, change: object
) -> None:
    metadata = saved_by_dcp(here)
    shutil.copy(here / "__0_0.distcp", here.parent / "outside")
    (here / ".metadata").write_bytes(pickle.dumps(metadata))
    read = get_backend("torch").read(str(here))
    assert read["a"].tolist() == [[1, 1]] * 3
    change(metadata)
    (here / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(here)


def test_metadata_that_the_manifest_does_not_list_is_not_opened(here: Path) -> None:
    """The tensors are those that are listed."""
    backend = get_backend("torch")
    backend.snapshot({"a": np.arange(3)}).write(str(here))
    files = {"state.pt": Listed((here / "state.pt").stat().st_size)}
    (here / ".metadata").write_bytes(PICKLES["global"])
    assert backend.read(str(here), files=files)["a"].tolist() == [0, 1, 2]
    with pytest.raises(
        CorruptCheckpointError, match="not one of the checkpoint's files"
    ):
        backend.read(str(here), files={})


def test_a_file_of_more_than_four_gigabytes(here: Path) -> None:
    """Its directory has numbers of eight bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for entry, data in (("data.pkl", tensor()), ("data/0", bytes(24))):
            with opened.open(f"archive/{entry}", "w", force_zip64=True) as written:
                written.write(data)
    (here / "state.pt").write_bytes(file.getvalue())
    assert get_backend("torch").read(str(here))["kernel"].shape == (3, 2)


def test_a_part_that_a_rank_reads_later(here: Path) -> None:
    """The file is compared with the metadata then, too."""
    saved_by_dcp(here)
    files = StoredFiles(str(here), None)
    saved = dcp_metadata.parse(files.read(".metadata", 1 << 20), files.sizes)["a"]
    tensor = torch.zeros(3, 2)
    dcp_stored.read_into(StoredTensor(files, saved), tensor, torch.from_numpy)
    assert tensor.tolist() == [[1, 1]] * 3
    other = replace(saved, dtype=np.dtype("int32"))
    stored = StoredTensor(files, other)
    with pytest.raises(CorruptCheckpointError, match="a different shape or type"):
        dcp_stored.read_into(stored, tensor.int(), torch.from_numpy)


@pytest.mark.parametrize("count", [1, 2])
def test_more_tensors_than_are_read_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The bound on what a pickle may hold would refuse them for ever."""
    monkeypatch.setattr("resilient.backends.arrays.MOST_TENSORS", 2)
    snapshot = get_backend().snapshot({name: np.zeros(2) for name in "abc"})
    with pytest.raises(NotSupportedError, match=r"at most 2 tensors(?s:.)*Received: 3"):
        snapshot.write(str(tmp_path), Part(0, count))
    assert os.listdir(tmp_path) == []
