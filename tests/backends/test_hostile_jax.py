"""What a stranger can write in the place of Orbax's files: it is an error, no more."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilient.backends import get_backend
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import CorruptCheckpointError

if os.environ["KERAS_BACKEND"] != "jax":
    pytest.skip("about JAX", allow_module_level=True)

import tensorstore as ts

from resilient.backends import ocdbt_nodes

ARRAY = np.arange(6, dtype=np.float32).reshape(3, 2)
ZARRAY: dict[str, Any] = {
    "zarr_format": 2,
    "order": "C",
    "compressor": None,
    "filters": None,
    "fill_value": None,
    "dimension_separator": ".",
    "dtype": "<f4",
    "shape": [3, 2],
    "chunks": [3, 2],
}
NAME = "('a',)"
TREE: dict[str, Any] = {
    "tree_metadata": {NAME: {"key_metadata": [{"key": "a", "key_type": 2}]}},
    "use_ocdbt": False,
    "use_zarr3": False,
}
DEEP = b"[" * 200_000 + b"]" * 200_000


def write(directory: Path, tree: object = TREE, array: object = ZARRAY) -> Path:
    """A tree with one array, every shard in a file of its own."""
    state = directory / "state"
    (state / "a").mkdir(parents=True, exist_ok=True)
    for path, content in ((state / "_METADATA", tree), (state / "a/.zarray", array)):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(raw)
    (state / "a/0.0").write_bytes(ARRAY.tobytes())
    return state


def database(directory: Path, values: dict[str, bytes]) -> Path:
    """A tree with one array, in a database with these values."""
    state = write(directory, TREE | {"use_ocdbt": True})
    for path in (state / "a").iterdir():
        path.unlink()
    base = {"driver": "file", "path": f"{state}/"}
    config = {"max_inline_value_bytes": 1024}
    spec = {"driver": "ocdbt", "base": base, "config": config}
    store = ts.KvStore.open(spec).result()
    with ts.Transaction() as transaction:
        for key, value in values.items():
            store.with_transaction(transaction)[key] = value
    return state


def encoded(**changed: object) -> dict[str, bytes]:
    return {
        "a/.zarray": json.dumps(ZARRAY | changed).encode(),
        "a/0.0": ARRAY.tobytes(),
    }


def sizes(directory: Path) -> dict[str, Listed]:
    return {
        path.relative_to(directory).as_posix(): Listed(path.lstat().st_size)
        for path in directory.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def read(directory: Path, files: dict[str, Listed] | None = None) -> dict[str, Any]:
    found = get_backend("jax").read(str(directory), files=files)
    return {name: np.asarray(each) for name, each in found.items()}


def refused(directory: Path) -> str:
    with pytest.raises(CorruptCheckpointError):
        read(directory)
    with pytest.raises(CorruptCheckpointError) as raised:
        read(directory, sizes(directory))
    return str(raised.value)


def test_the_trees_in_these_tests_are_good_ones(tmp_path: Path) -> None:
    write(tmp_path / "files")
    database(tmp_path / "database", encoded())
    for directory in (tmp_path / "files", tmp_path / "database"):
        assert read(directory)["a"].tolist() == ARRAY.tolist()
        assert read(directory, sizes(directory))["a"].tolist() == ARRAY.tolist()


def named(*keys: object) -> dict[str, Any]:
    leaf = {"key_metadata": [{"key": key, "key_type": 2} for key in keys]}
    return TREE | {"tree_metadata": {NAME: leaf}}


@pytest.mark.parametrize(
    "tree",
    [
        b"",
        b"{",
        b"\xff",
        DEEP,
        [],
        {},
        TREE | {"use_ocdbt": 1},
        TREE | {"use_ocdbt": "false"},
        TREE | {"use_zarr3": True},
        TREE | {"tree_metadata": []},
        TREE | {"tree_metadata": {NAME: {}}},
        *map(named, ["..", ".", "", "a/../../b", "/etc", "a\0", "a\n", "\ud800", 3]),
        named(),
        named("a", "b"),
        named("b"),
        TREE | {"use_ocdbt": True},
    ],
)
def test_metadata_of_a_tree(tmp_path: Path, tree: object) -> None:
    write(tmp_path, tree)
    refused(tmp_path)


BAD_ARRAYS: list[dict[str, Any]] = [
    {"compressor": {"id": "blosc"}},
    {"compressor": {"id": "gzip", "level": 1}},
    {"filters": [{"id": "delta"}]},
    {"zarr_format": 3},
    {"order": "F"},
    {"fill_value": 0},
    {"dtype": "|O"},
    {"dtype": "<U4"},
    {"dtype": ">f4"},
    {"dtype": [["x", "<f4"]]},
    {"dtype": "<f8"},
    {"dtype": "int4"},
    {"shape": [1 << 40, 1 << 40], "chunks": [1 << 40, 1 << 40]},
    {"shape": [1 << 40, 2]},
    {"shape": [1 << 70], "chunks": [1 << 70]},
    {"shape": [-1, 2]},
    {"shape": [3.5, 2]},
    {"shape": "3"},
    {"shape": [3]},
    {"chunks": [0, 2]},
    {"chunks": [1, 1]},
    {"chunks": [6, 2]},
    {"chunks": [3]},
    {"shape": [1] * 100, "chunks": [1] * 100},
    {"kvstore": {"driver": "file", "path": "/etc/"}},
    {"dimension_separator": "/"},
]


@pytest.mark.parametrize("changed", BAD_ARRAYS)
def test_metadata_of_an_array(tmp_path: Path, changed: dict[str, Any]) -> None:
    """In files, and in a database."""
    write(tmp_path / "files", array=ZARRAY | changed)
    refused(tmp_path / "files")
    database(tmp_path / "database", encoded(**changed))
    refused(tmp_path / "database")


@pytest.mark.parametrize("raw", [b"", b"{", DEEP, b"null", b"0" * 100_000])
def test_metadata_of_an_array_that_is_no_object(tmp_path: Path, raw: bytes) -> None:
    write(tmp_path / "files", array=raw)
    refused(tmp_path / "files")
    database(tmp_path / "database", encoded() | {"a/.zarray": raw})
    refused(tmp_path / "database")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"a/.zarray": encoded()["a/.zarray"]},
        {"a/0.0": ARRAY.tobytes()},
        encoded() | {"a/0.0": b""},
        encoded() | {"a/0.0": bytes(100)},
    ],
)
def test_what_a_database_lacks(tmp_path: Path, values: dict[str, bytes]) -> None:
    database(tmp_path, values)
    refused(tmp_path)


@pytest.mark.parametrize("rows", [1 << 27, 1 << 40])
def test_shards_of_nothing_are_not_gone_through(tmp_path: Path, rows: int) -> None:
    state = write(tmp_path, array=ZARRAY | {"shape": [rows, 0], "chunks": [1, 1]})
    (state / "a/0.0").unlink()
    assert read(tmp_path)["a"].shape == (rows, 0)


def test_files_that_are_not_those_of_the_shards(tmp_path: Path) -> None:
    """One too few, too many, too short; a link, and what blocks who opens it."""
    state = write(tmp_path)
    (state / "a/1.0").write_bytes(bytes(24))
    assert "exactly one file for each shard" in refused(tmp_path)
    (state / "a/1.0").unlink()
    (state / "a/0.0").write_bytes(bytes(23))
    assert "exactly one file for each shard" in refused(tmp_path)
    (state / "a/0.0").unlink()
    assert "exactly one file for each shard" in refused(tmp_path)
    (state / "a/.zarray").unlink()
    os.mkfifo(state / "a/.zarray")
    assert "regular" in refused(tmp_path)
    (state / "_METADATA").unlink()
    (state / "_METADATA").symlink_to("/dev/zero")
    assert "regular" in refused(tmp_path)


@pytest.mark.parametrize("to", ["../outside", "/dev/zero", "../../outside", "d/link"])
def test_a_database_whose_values_are_elsewhere(tmp_path: Path, to: str) -> None:
    """It names the file of each: none is opened but those of the checkpoint."""
    large = {"shape": [1000, 2], "chunks": [1000, 2]}
    state = database(tmp_path, encoded(**large) | {"a/0.0": bytes(8000)})
    assert read(tmp_path)["a"].shape == (1000, 2)
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    manifest = ts.ocdbt.dump(base).result()
    data = next(p for p in (state / "d").iterdir() if p.name in json.dumps(manifest))
    (state / "d/link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").write_bytes(data.read_bytes())
    listed = sizes(tmp_path)
    del listed["state/d/link"]
    moved = json.loads(json.dumps(manifest).replace(f"d/{data.name}", to))
    assert moved != manifest
    (state / "manifest.ocdbt").write_bytes(ts.ocdbt.undump_manifest(moved))
    listed["state/manifest.ocdbt"] = sizes(tmp_path)["state/manifest.ocdbt"]
    with pytest.raises(CorruptCheckpointError):
        read(tmp_path, listed)
    with pytest.raises(CorruptCheckpointError):
        read(tmp_path)


def bomb(directory: Path, mebibytes: int, *, per_value: int = 1 << 20) -> Path:
    """A database with an array, and that much of nothing inside its nodes."""
    state = database(directory, encoded())
    config = {"max_inline_value_bytes": 1 << 20, "max_decoded_node_bytes": 2**31 - 1}
    for path in [state / "manifest.ocdbt", *(state / "d").iterdir()]:
        path.unlink()
    base = {"driver": "file", "path": f"{state}/"}
    store = ts.KvStore.open(
        {"driver": "ocdbt", "base": base, "config": config}
    ).result()
    with ts.Transaction() as transaction:
        inside = store.with_transaction(transaction)
        for key, value in encoded().items():
            inside[key] = value
        for number in range((mebibytes << 20) // per_value):
            inside[f"nothing/{number:06}"] = bytes(per_value)
    return state


def test_a_database_that_is_small_until_it_is_decoded(tmp_path: Path) -> None:
    state = bomb(tmp_path, 80)
    assert sum(file.size for file in sizes(state).values()) < 100_000
    assert "far larger" in refused(tmp_path)


@pytest.mark.parametrize("per_value", [1 << 20, 100])
def test_what_nodes_are_decoded_to_is_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_value: int
) -> None:
    """The bound is above what is in them, and less than five times as high.

    How often nodes are written until the last are there is chance.
    """
    state = bomb(tmp_path, 8, per_value=per_value)
    for more in (7 << 20, 40 << 20):
        monkeypatch.setattr(ocdbt_nodes, "_MORE", more)
        if more < 8 << 20:
            assert "far larger" in refused(tmp_path)
        else:
            ocdbt_nodes.require_bounded(StoredFiles(str(state), None))


def of_the_newest_version(state: Path) -> set[str]:
    """The files that a database's newest version is in; others are superseded."""
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    found: set[str] = set()
    to_do = [ts.ocdbt.dump(base).result()["versions"][-1]["root"]["location"]]
    while to_do:
        found.add(to_do[-1].split(":")[2])
        node = ts.ocdbt.dump(base, to_do.pop()).result()
        to_do += [each["location"] for each in node["entries"] if "location" in each]
        values = [each.get("indirect_value", "::") for each in node["entries"]]
        found |= {value.split(":")[2] for value in values}
    return found


def test_what_we_save_of_many_small_arrays_is_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros, of which the files have next to nothing; however many there are.

    How many versions TensorStore writes before the last one is chance; that is what
    the bound has room for beside the arrays.
    """
    arrays = {f"variable.{n:05}": np.zeros(255, np.float32) for n in range(500)}
    get_backend("jax").snapshot(arrays).write(str(tmp_path))
    assert read(tmp_path).keys() == arrays.keys()
    state = tmp_path / "state"
    newest = of_the_newest_version(state)
    for path in (state / "d").iterdir():
        if f"d/{path.name}" not in newest:
            path.unlink()
    monkeypatch.setattr(ocdbt_nodes, "_MORE", 0)
    assert read(tmp_path).keys() == arrays.keys()


@pytest.mark.parametrize("count", [1, 2000])
@pytest.mark.parametrize("version", [b"\0", b"\x80\x80\0"])
@pytest.mark.parametrize("again", [b"", b"\x50\x2a\x4d\x18\2\0\0\0ab", b"frame"])
def test_nodes_that_we_make(tmp_path: Path, count: int, version: bytes, again: bytes):
    """Each block repeats one byte 128 KiB times: 1 is too little to be refused."""
    block = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = (1 << 17 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    frame = b"\x28\xb5\x2f\xfd\0\x38" + block * (count - 1) + last
    node = b"\x0c\xdb\x20\xde" + bytes(8) + version + b"\1"
    node += again.replace(b"frame", frame) + frame
    (tmp_path / "node").write_bytes(b"something" + node + bytes(4))
    files = StoredFiles(str(tmp_path), None)
    if count == 1:
        ocdbt_nodes.require_bounded(files)
        return
    with pytest.raises(CorruptCheckpointError, match="far larger"):
        ocdbt_nodes.require_bounded(files)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        b"\x0c\xdb\x20\xde",
        b"\x0c\xdb\x20\xde" + b"\x80" * 40,
        b"\x50\x2a\x4d\x18\0\0\0\0",
        b"\x0c\xdb\x20\xde" + bytes(9) + b"\1\x28\xb5\x2f\xfd\0\x38" + bytes(99),
    ],
)
def test_many_nodes_of_nothing_are_not_looked_at_for_hours(
    tmp_path: Path, piece: bytes
):
    begin = b"\x0c\xdb\x20\xde" + bytes(9) + b"\1"
    (tmp_path / "node").write_bytes(begin + piece * ((4 << 20) // len(piece)))
    with contextlib.suppress(CorruptCheckpointError):
        ocdbt_nodes.require_bounded(StoredFiles(str(tmp_path), None))


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_were_changed(tmp_path: Path, seed: int) -> None:
    """It is found, or what is read has the shape and the size that it says."""
    chance = random.Random(seed)
    state = database(tmp_path, encoded())
    path = chance.choice([p for p in state.rglob("*") if p.is_file()])
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 3, 20])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content[: chance.choice([len(content), len(content) // 2])])
    try:
        found = read(tmp_path)
    except CorruptCheckpointError:
        return
    assert sum(array.nbytes for array in found.values()) <= 24
