"""What a stranger can write in a file to import: it is an error that says so."""

import gzip
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from support.fitting import model as new_model

import resilient
from resilient import CheckpointMismatchError, NotSupportedError
from resilient.convert import hdf5_files
from resilient.state.weights import ready

BACKEND = keras.backend.backend()
# Keras reads a variable in a way that numpy 2.4 says will end.
pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]
HUGE = 1 << 40


def model(**given: Any) -> keras.Model:
    """A model with the names that it has in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    return new_model(**given)


def refused(source: Path, kind: type[Exception] = NotSupportedError) -> str:
    target = source.parent / "run"
    with pytest.raises(kind) as raised:
        resilient.import_checkpoint(source, model(), checkpoint_dir=target, epoch=1)
    assert not Path("SEEN").exists()
    assert not target.exists()
    return str(raised.value)


@pytest.mark.parametrize("name", ["x.keras", "x.weights.h5", "x.safetensors"])
def test_what_blocks_who_opens_it(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "not a regular file" in refused(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert "not a regular file" in refused(tmp_path / name)


def test_a_backup_whose_metadata_blocks(tmp_path: Path) -> None:
    net = model()
    net.save_weights(tmp_path / "latest.weights.h5")
    os.mkfifo(tmp_path / "training_metadata.json")
    assert "not a regular file" in refused(tmp_path)
    (tmp_path / "training_metadata.json").unlink()
    deep = "[" * 200_000
    (tmp_path / "training_metadata.json").write_text(deep)
    assert "does not say how far" in refused(tmp_path)


Change = Callable[[h5py.File, str, Path], object]


def soft_link(file: h5py.File, name: str, _: Path) -> None:
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def external_link(file: h5py.File, name: str, beside: Path) -> None:
    with h5py.File(beside / "other.h5", "w") as other:
        other["x"] = file[name][...]
    del file[name]
    file[name] = h5py.ExternalLink(os.fspath(beside / "other.h5"), "x")


def external_storage(file: h5py.File, name: str, beside: Path) -> None:
    array = file[name][...]
    (beside / "secret").write_bytes(array.tobytes())
    del file[name]
    external = [(os.fspath(beside / "secret"), 0, array.nbytes)]
    file.create_dataset(name, array.shape, array.dtype, external=external)


def virtual(file: h5py.File, name: str, beside: Path) -> None:
    array = file[name][...]
    with h5py.File(beside / "other.h5", "w") as other:
        other["x"] = array
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(os.fspath(beside / "other.h5"), "x", array.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def compressed(file: h5py.File, name: str, _: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, compression="gzip")


def in_pieces(file: h5py.File, name: str, _: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, chunks=True)


def not_there(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file.create_dataset(name, (HUGE,), "f4", chunks=(1024,))


def objects(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file.create_dataset(name, data=np.array(["x"], dtype=h5py.string_dtype()))


def nothing(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file[name] = h5py.Empty("f4")


def in_itself(file: h5py.File, _: str, __: Path) -> None:
    file["again"] = file["/"]


CHANGES: list[Change] = [
    soft_link,
    external_link,
    external_storage,
    virtual,
    compressed,
    in_pieces,
    not_there,
    objects,
    nothing,
    in_itself,
]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_not_in_their_file(tmp_path: Path, change: Change) -> None:
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    with h5py.File(source, "r+") as file:
        names: list[str] = []
        file.visititems(
            lambda name, item: (
                names.append(name) if isinstance(item, h5py.Dataset) else None
            )
        )
        change(file, names[0], tmp_path)
    assert "as Keras writes it" in refused(source)


def test_a_file_in_which_libhdf5_is_caught_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal and no thread ends it."""
    monkeypatch.setattr(hdf5_files, "SECONDS", 3.0)
    source = tmp_path / "x.weights.h5"
    wrong = Path(__file__).with_name("wrong_addresses.weights.h5.gz")
    source.write_bytes(gzip.decompress(wrong.read_bytes()))
    assert "cannot be read within 3 s" in refused(source)


def test_a_file_that_crashes_libhdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, look = tmp_path / "x.weights.h5", tmp_path / "look.py"
    source.touch()
    look.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(hdf5_files, "LOOK", look)
    assert "crashes libhdf5 (signal 6)" in refused(source)


@pytest.mark.parametrize("stored", ["f8", "i8", "c16", "?"])
def test_a_dtype_that_is_only_named_is_not_cast(tmp_path: Path, stored: str) -> None:
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    with h5py.File(source, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = next(n for n in names if isinstance(file[n], h5py.Dataset))
        array = file[name][...].astype(stored)
        del file[name]
        file[name] = array
        file[name].attrs["dtype"] = "float32"
    assert f"float32 as {array.dtype}" in refused(source, CheckpointMismatchError)


def test_a_look_is_as_isolated_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PYTHONPATH has is not run where Python was told to leave it."""
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = SimpleNamespace(ignore_environment=1, no_user_site=1)
    isolated = SimpleNamespace(executable=sys.executable, flags=flags)
    monkeypatch.setattr(hdf5_files, "sys", isolated)
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    assert hdf5_files.layout(source)


def test_a_path_that_is_no_text_is_told_escaped(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff.weights.h5")
    net = model()
    ready(net)
    net.save_weights(tmp_path / "x.weights.h5")
    (tmp_path / "x.weights.h5").rename(source)
    with pytest.warns(resilient.NotExactWarning):
        made = resilient.import_checkpoint(
            source, net, checkpoint_dir=tmp_path / "run", epoch=1
        )
    said = json.loads((made.path / "run.json").read_bytes())["source"]
    assert said == f"{tmp_path}/\\udcff.weights.h5"


def test_a_keras_file_that_unpacks_to_more(tmp_path: Path) -> None:
    """It would fill the disk before it is compared with the model."""
    source = tmp_path / "x.keras"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 24))
    assert "compressed" in refused(source)
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("model.weights.h5", b"")
        archive.writestr("../model.weights.h5", b"")
    assert "weights and nothing else" in refused(source)


def of_another_size(raw: bytearray, directory: int) -> None:
    struct.pack_into("<II", raw, directory + 20, 1 << 30, 1 << 30)


def encrypted(raw: bytearray, directory: int) -> None:
    raw[directory + 8] |= 1


def elsewhere(raw: bytearray, directory: int) -> None:
    struct.pack_into("<I", raw, directory + 42, 7)


def flipped(raw: bytearray, directory: int) -> None:
    raw[raw.index(b"content")] ^= 1


def cut_short(raw: bytearray, directory: int) -> None:
    del raw[directory:]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (of_another_size, "compressed or incomplete"),
        (encrypted, "is encrypted"),
        (elsewhere, "BadZipFile"),
        (flipped, "Bad CRC-32"),
        (cut_short, "not a zip file"),
    ],
)
def test_a_keras_file_that_is_damaged(
    tmp_path: Path, change: Callable[[bytearray, int], None], why: str
) -> None:
    source = tmp_path / "x.keras"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("model.weights.h5", b"content")
    raw = bytearray(source.read_bytes())
    change(raw, raw.index(b"PK\1\2"))
    source.write_bytes(raw)
    assert why in refused(source)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        [],
    ],
)
def test_safetensors_that_are_not_there(tmp_path: Path, header: object) -> None:
    raw = json.dumps(header).encode()
    content = len(raw).to_bytes(8, "little") + raw + bytes(4)
    (tmp_path / "x.safetensors").write_bytes(content)
    refused(tmp_path / "x.safetensors")
