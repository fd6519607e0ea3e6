"""What a stranger can write in the place of Orbax's files: it is an error, no more."""

import contextlib
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilient.backends import get_backend, written_elsewhere
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import CorruptCheckpointError

if os.environ["KERAS_BACKEND"] != "jax":
    pytest.skip("about JAX", allow_module_level=True)

import tensorstore as ts
from support.leveldb import plain_crc32c, varint

from resilient.backends import ocdbt_nodes, ocdbt_places

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
        monkeypatch.setattr(ocdbt_places, "_MORE", more)
        if more < 8 << 20:
            assert "far larger" in refused(tmp_path)
            with pytest.raises(CorruptCheckpointError, match="far larger"):
                ocdbt_nodes.require_bounded(StoredFiles(str(state), None), 1)
        else:
            ocdbt_nodes.require_bounded(StoredFiles(str(state), None), 1)
            assert read(tmp_path)["a"].tolist() == ARRAY.tolist()


@pytest.mark.parametrize("count", [1, 500])
def test_what_we_save_of_many_small_arrays_is_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    arrays = {f"variable.{n:05}": np.zeros(255, np.float32) for n in range(count)}
    get_backend("jax").snapshot(arrays).write(str(tmp_path))
    monkeypatch.setattr(ocdbt_places, "_MORE", 2 * 2**17)  # one block of two nodes
    assert read(tmp_path).keys() == arrays.keys()


def test_what_we_saved_with_values_among_the_names_is_within_the_bound(
    tmp_path: Path,
) -> None:
    """Nodes may be as large as TensorStore makes them."""
    chance = np.random.default_rng(0)
    names = [f"v{number * 7919 % 1000003:06}.{number}" for number in range(7_500)]
    what = json.dumps(ZARRAY | {"shape": [200], "chunks": [200]}).encode()
    arrays = {name: chance.random(200, np.float32) for name in names}
    values = {f"{name}/0": array.tobytes() for name, array in arrays.items()}
    state = database(tmp_path, values | {f"{name}/.zarray": what for name in names})
    tree = {n: {"key_metadata": [{"key": n, "key_type": 2}]} for n in names}
    metadata = TREE | {"use_ocdbt": True, "tree_metadata": tree}
    (state / "_METADATA").write_text(json.dumps(metadata))
    found = read(tmp_path)
    assert all(np.array_equal(found[name], arrays[name]) for name in names)


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
        ocdbt_nodes.require_bounded(files, 0)
        return
    with pytest.raises(CorruptCheckpointError, match="far larger"):
        ocdbt_nodes.require_bounded(files, 0)


def node(height: int, *entries: tuple[bytes, bytes, int, int]) -> bytes:
    """A node of keys, their common prefixes (or no), offsets and lengths."""
    keys, prefixes, offsets, lengths = zip(*entries, strict=True)
    count = len(entries)

    def numbers(*values: int) -> bytes:
        return b"".join(map(varint, values))

    body = bytes([0, 0, height]) + numbers(1, len(FILE), 0) + FILE + numbers(count)
    body += bytes(count - 1) + numbers(*map(len, keys))
    if height:
        body += numbers(*map(len, prefixes)) + b"".join(keys)
        body += bytes(count) + numbers(*offsets, *lengths) + bytes(3 * count)
    else:
        body += b"".join(keys) + numbers(*lengths) + b"\1" * count
        body += bytes(count) + numbers(*offsets)
    whole = b"\x0c\xdb\x20\xde" + struct.pack("<Q", len(body) + 16) + body
    return whole + struct.pack("<I", plain_crc32c(whole))


FILE = b"d/" + b"0123456789abcdef" * 2


def tree_of_nodes(directory: Path, root: int, height: int, content: bytes) -> Path:
    """A database whose nodes and values are all in one file, the root at its end."""
    state = database(directory, encoded())
    base = ts.KvStore.open({"driver": "file", "path": f"{state}/"}).result()
    manifest = ts.ocdbt.dump(base).result()
    newest = manifest["versions"][-1]
    newest["root_height"] = height
    newest["root"]["location"] = (
        f"btreenode::{FILE.decode()}:{root}:{len(content) - root}"
    )
    for path in (state / "d").iterdir():
        path.unlink()
    (state / FILE.decode()).write_bytes(content)
    (state / "manifest.ocdbt").write_bytes(ts.ocdbt.undump_manifest(manifest))
    return state


VALUES = encoded()["a/.zarray"] + ARRAY.tobytes()
AT = len(VALUES) - ARRAY.nbytes
META, CHUNK = (b"a/.zarray", b"", 0, AT), (b"a/0.0", b"", AT, ARRAY.nbytes)


def test_a_leaf_that_we_make_is_a_good_one(tmp_path: Path) -> None:
    tree_of_nodes(tmp_path, len(VALUES), 0, VALUES + node(0, META, CHUNK))
    assert read(tmp_path)["a"].tolist() == ARRAY.tolist()


def test_a_tree_of_several_nodes_is_a_good_one(tmp_path: Path) -> None:
    """Below a node stand only the ends of keys that begin alike."""
    leaf = node(0, (b".zarray", *META[1:]), (b"0.0", *CHUNK[1:]))
    root = node(1, (b"a/.zarray", b"a/", len(VALUES), len(leaf)))
    content = VALUES + leaf + root
    tree_of_nodes(tmp_path, len(VALUES + leaf), 1, content)
    assert read(tmp_path)["a"].tolist() == ARRAY.tolist()


@pytest.mark.parametrize(("inline", "most"), [(0, 2000), (1024, 9000)])
def test_a_tree_that_tensorstore_cuts_into_many_nodes(
    tmp_path: Path, inline: int, most: int
) -> None:
    names = [f"layer.{n:03}" for n in range(60)]
    tree = {n: {"key_metadata": [{"key": n, "key_type": 2}]} for n in names}
    state = database(tmp_path, {})
    (state / "_METADATA").write_text(
        json.dumps(TREE | {"use_ocdbt": True, "tree_metadata": tree})
    )
    (state / "manifest.ocdbt").unlink(missing_ok=True)
    config = {"max_inline_value_bytes": inline, "max_decoded_node_bytes": most}
    base = {"driver": "file", "path": f"{state}/"}
    store = ts.KvStore.open(
        {"driver": "ocdbt", "base": base, "config": config}
    ).result()
    with ts.Transaction() as transaction:
        for number, name in enumerate(names):
            inside = store.with_transaction(transaction)
            inside[f"{name}/.zarray"] = encoded()["a/.zarray"]
            inside[f"{name}/0.0"] = (ARRAY + number).tobytes()
    newest = ts.ocdbt.dump(ts.KvStore.open(base).result()).result()["versions"][-1]
    assert newest["root_height"] >= 1
    found = read(tmp_path)
    assert list(found) == names
    for number, name in enumerate(names):
        assert np.array_equal(found[name], ARRAY + number)


@pytest.mark.parametrize(
    ("meta", "chunk"),
    [
        (META, (b"a/0.0", b"", AT, 1 << 40)),
        (META, (b"a/0.0", b"", 1 << 40, 24)),
        (META, (b"a/0.0", b"", (1 << 64) - 25, 24)),
        (META, (b"a/0.0", b"", AT + 1, 24)),
        (META, (b"a/0.0", b"", AT, 23)),
        ((b"a/.zarray", b"", 0, 1 << 40), CHUNK),
        ((b"a/.zarray", b"", 1 << 40, 3), CHUNK),
        ((b"a/.zarray", b"", 0, 0), CHUNK),
        ((b"\xff/.zarray", b"", 0, AT), CHUNK),
    ],
)
def test_values_that_are_in_no_file(
    tmp_path: Path,
    meta: tuple[bytes, bytes, int, int],
    chunk: tuple[bytes, bytes, int, int],
) -> None:
    leaf = node(0, *sorted((meta, chunk)))
    tree_of_nodes(tmp_path, len(VALUES), 0, VALUES + leaf)
    if chunk[2] == AT + 1:  # it begins in the array and ends in the node: who can tell?
        assert read(tmp_path)["a"].shape == (3, 2)
    else:
        refused(tmp_path)


@pytest.mark.parametrize(
    ("shape", "beyond"), [([1 << 17], 0), ([1 << 17], 1), ([1] * 70 + [1 << 17], 0)]
)
def test_a_large_array_that_is_not_there(
    tmp_path: Path, shape: list[int], beyond: int
) -> None:
    """Also where it is read later, and in pieces."""
    meta = json.dumps(ZARRAY | {"shape": shape, "chunks": shape}).encode()
    content = meta + bytes(1 << 19)
    chunk = f"a/{'.'.join('0' * len(shape))}".encode()
    leaf = node(
        0,
        (b"a/.zarray", b"", 0, len(meta)),
        (chunk, b"", len(meta) + beyond * (1 << 19), 1 << 19),
    )
    tree_of_nodes(tmp_path, len(content), 0, content + leaf)
    if len(shape) == 1 and not beyond:
        assert np.asarray(piecewise(tmp_path)["a"]).nbytes == 1 << 19
        assert read(tmp_path)["a"].nbytes == 1 << 19
        return
    refused(tmp_path)
    with pytest.raises(CorruptCheckpointError):
        np.asarray(piecewise(tmp_path)["a"])


def piecewise(directory: Path) -> dict[str, Any]:
    files = sizes(directory)
    return written_elsewhere.tensors("jax", directory, files, piecewise=True)


def test_arrays_that_share_their_metadata(tmp_path: Path) -> None:
    """Few bytes are no more metadata than they have room for."""
    names, size = [f"{number:03}" for number in range(50)], 1000
    tree = {n: {"key_metadata": [{"key": n, "key_type": 2}]} for n in names}
    meta = json.dumps(ZARRAY | {"shape": [0], "chunks": [1]}).encode().ljust(size)
    leaf = node(0, *((f"{n}/.zarray".encode(), b"", 0, size) for n in names))
    state = tree_of_nodes(tmp_path, size, 0, meta + leaf)
    metadata = TREE | {"use_ocdbt": True, "tree_metadata": tree}
    (state / "_METADATA").write_text(json.dumps(metadata))
    assert "metadata" in refused(tmp_path)


def test_two_arrays_in_one_place(tmp_path: Path) -> None:
    """Few bytes are no more arrays than they have room for."""
    both = named("a")
    both["tree_metadata"]["b"] = {"key_metadata": [{"key": "b", "key_type": 2}]}
    entries = [(k.replace(b"a", b"b", 1), *rest) for k, *rest in (META, CHUNK)]
    leaf = node(0, META, CHUNK, *entries)
    state = tree_of_nodes(tmp_path, len(VALUES), 0, VALUES + leaf)
    (state / "_METADATA").write_text(json.dumps(both | {"use_ocdbt": True}))
    assert "the same place" in refused(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("levels", [1, 8, 200])
@pytest.mark.parametrize("each", [1, 2, 50])
def test_nodes_that_lead_to_the_same_nodes(
    tmp_path: Path, levels: int, each: int
) -> None:
    """Going through all of them would take for ever, or fill the memory."""
    content, below = VALUES, node(0, META, CHUNK)
    for height in range(1, levels + 1):
        at, size = len(content), len(below)
        content += below
        keys = [bytes([byte]) for byte in range(1, each + 1)]
        below = node(height, *((key, b"", at, size) for key in keys))
    tree_of_nodes(tmp_path, len(content), levels, content + below)
    if each**levels <= 256:
        assert read(tmp_path)["a"].tolist() == ARRAY.tolist()
    else:
        assert "far larger" in refused(tmp_path)


@pytest.mark.parametrize("height", [0, 1])
def test_many_keys_that_begin_with_very_much(tmp_path: Path, height: int) -> None:
    """It is in one node, and would be in the memory as often as there are keys."""
    keys = [f"{number:03}".encode() for number in range(200)]
    content, levels = VALUES + node(0, META, CHUNK), height + 1
    at, size = len(VALUES), len(content) - len(VALUES)
    below = node(height, *((key, key, at if height else 0, size) for key in keys))
    at, content = len(content), content + below
    long = b"a" * 60_000
    root = node(levels, (long, long, at, len(below)))
    tree_of_nodes(tmp_path, len(content), levels, content + root)
    assert "far larger" in refused(tmp_path)


def test_a_node_that_leads_to_itself(tmp_path: Path) -> None:
    at = len(VALUES)
    size = len(node(1, (b"a", b"", at, 100)))
    content = VALUES + node(1, (b"a", b"", at, size))
    assert len(content) == at + size
    tree_of_nodes(tmp_path, at, 1, content)
    assert "no tree" in refused(tmp_path)


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
        ocdbt_nodes.require_bounded(StoredFiles(str(tmp_path), None), 0)


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
