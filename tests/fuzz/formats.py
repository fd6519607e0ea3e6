"""Files of a backend, taken apart, changed and put together as its library would."""

import io
import json
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import keras
from resilient.backends.bundle import _table
from resilient.backends.zip_directory import places
from support.leveldb import crc32c, table

from resilient.backends import bundle_entries

from . import mutations, trees
from .target import Files

BACKEND = keras.backend.backend()
_INDEX = "variables/state.index"
_DATA = "variables/state.data-00000-of-00001"
_TORCH = "variables/state.pt"
_STATE = "variables/state"


def mutated(files: Files, random: Random, backend: str = BACKEND) -> dict[str, bytes]:
    """Other files of a backend, with right checksums and lengths inside."""
    if backend == "tensorflow" != BACKEND:
        return {_INDEX: index_without_checksums(files[_INDEX], random)}
    return _FORMATS[backend](files, random)


def _torch(files: Files, random: Random) -> dict[str, bytes]:
    """Other operations in the pickle of a zip file."""
    return {_TORCH: torch_file(files[_TORCH], random)}


def torch_file(raw: bytes, random: Random) -> bytes:
    entries = _entries(raw)
    at = next(i for i, (name, _) in enumerate(entries) if name.endswith("data.pkl"))
    name, pickle = entries[at]
    entries[at] = name, _operations(pickle, random)
    if random.random() < 0.2:
        other = random.randrange(len(entries))
        entries[other] = entries[other][0], mutations.mutated(entries[other][1], random)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def _entries(raw: bytes) -> list[tuple[str, bytes]]:
    """Those of a zip file; torch writes no checksums of them."""
    return [(name, raw[place]) for name, place in places(memoryview(raw)).items()]


def _operations(pickle: bytes, random: Random) -> bytes:
    begins = [begin for _, _, begin in pickletools.genops(pickle)]
    ends = [*begins[1:], len(pickle)]
    pieces = [pickle[a:b] for a, b in zip(begins, ends, strict=True)]
    for _ in range(random.choice((1, 1, 2, 4))):
        at, other = random.randrange(len(pieces)), random.randrange(len(pieces))
        change = random.randrange(6)
        if change == 0:
            del pieces[at]
        elif change == 1:
            pieces.insert(at, pieces[other])
        elif change == 2:
            pieces[at] = pieces[other]
        elif change == 3:
            pieces[at] = mutations.mutated(pieces[at], random)
        elif change == 4:
            pieces.insert(at, random.choice(_HOSTILE))
        else:
            numbers = [i for i, p in enumerate(pieces) if p[:1] in b"KMJ\x8a"]
            if numbers:
                pieces[random.choice(numbers)] = _number(random)
    return b"".join(pieces)


def _number(random: Random) -> bytes:
    value = random.choice((0, 1, -1, 2, 2**31 - 1, -(2**31), 2**62, 2**63, 2**70))
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(10, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


_HOSTILE = (
    *(
        b"cos\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"(S'x'\nios\nsystem\n",
        b"\x81",
    ),
    *(b"R", b"b", b"Q", b"}", b"]", b")", b"(", b"t", b"u", b"s", b"\x85", b"e", b"a"),
    *(b"h\x00", b"q\x00", b"r\xff\xff\xff\xff", b"K\x00", b"N", b"\x88", b"\x82\x01"),
    *(b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n"),
    *(b"ctorch._utils\n_rebuild_parameter\n", b"ctorch\nBFloat16Storage\n"),
)


def _tensorflow(files: Files, random: Random) -> dict[str, bytes]:
    """Another index, or other data; either with right checksums."""
    if random.random() < 0.7:
        return {_INDEX: index(files[_INDEX], random)}
    data = mutations.mutated(files[_DATA], random)
    return {_DATA: data, _INDEX: _summed(files[_INDEX], data)}


def _summed(raw: bytes, data: bytes) -> bytes:
    """The index of other data."""
    from tensorflow.core.protobuf import tensor_bundle_pb2 as protos

    entries = []
    for key, value in _table(memoryview(raw)):
        proto = protos.BundleEntryProto.FromString(value)
        proto.crc32c = crc32c(data[proto.offset : proto.offset + proto.size])
        entries.append((key, proto.SerializeToString() if key else value))
    return table(entries)


def index(raw: bytes, random: Random) -> bytes:
    from tensorflow.core.protobuf import tensor_bundle_pb2 as protos

    entries = list(_table(memoryview(raw)))
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(entries))
        key, value = entries[at]
        if key and random.random() < 0.7:
            proto = protos.BundleEntryProto.FromString(value)
            _change_entry(proto, random)
            value = proto.SerializeToString()
        else:
            value = mutations.mutated(value, random)
        if random.random() < 0.1:
            key = mutations.mutated(key, random)
        entries[at] = key, value
        if random.random() < 0.1:
            entries.append(random.choice(entries))
    if random.random() < 0.8:
        entries.sort()
    return table(entries)


def index_without_checksums(raw: bytes, random: Random) -> bytes:
    """Another index, where TensorFlow is not installed."""
    entries = list(_table(memoryview(raw)))
    for at in random.sample(range(len(entries)), random.choice((1, 1, 2))):
        key, value = entries[at]
        known = bundle_entries._ENTRY if key else bundle_entries._HEADER
        fields = list(bundle_entries._fields(memoryview(value), known))
        if fields and random.random() < 0.7:
            fields[random.randrange(len(fields))] = _field(fields, random)
            value = b"".join(_encoded(*field) for field in fields)
        else:
            value = mutations.mutated(value, random)
        if random.random() < 0.1:
            key = mutations.mutated(key, random)
        entries[at] = key, value
    if random.random() < 0.8:
        entries.sort()
    return table(entries)


def _field(fields: list[Any], random: Random) -> tuple[int, Any]:
    """Another field: of another number, or with other content."""
    number, content = random.choice(fields)
    if isinstance(content, int):
        return number, random.choice((0, 1, 7, 2**20, 2**31, 2**62, 2**64 - 1))
    if number == 2 and random.random() < 0.7:  # shapes, and the dimensions in them
        sizes = [
            random.choice((0, 1, 2, 2**31, 2**63))
            for _ in range(random.choice((1, 2, 70)))
        ]
        return number, b"".join(_encoded(2, _encoded(1, size)) for size in sizes)
    return number, mutations.mutated(bytes(content), random)


def _encoded(number: int, content: Any) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    if number == 6:  # a checksum, of fixed length
        return _varint(number << 3 | 5) + bytes(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + bytes(content)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _change_entry(proto: Any, random: Random) -> None:
    number = random.choice((0, 1, 2, 4, 8, 2**20, 2**31, 2**40, 2**62, 2**63 - 1, -1))
    change = random.randrange(7)
    if change == 0:
        proto.dtype = random.randrange(32)
    elif change == 1:
        proto.shard_id = number % 2**31
    elif change == 2:
        proto.offset = number
    elif change == 3:
        proto.size = number
    elif change == 4 and proto.shape.dim:
        proto.shape.dim[random.randrange(len(proto.shape.dim))].size = number
    elif change == 5:
        proto.shape.dim.add().size = number
    else:
        proto.crc32c = number % 2**32


def _jax(files: Files, random: Random) -> dict[str, bytes]:
    """Another ``_METADATA``, or a database with other values."""
    name = f"{_STATE}/_METADATA"
    if random.random() < 0.4:
        return {name: trees.mutated(files[name], random, trees.compact)}
    values = database(files)
    key = random.choice(sorted(values))
    if key.endswith(b".zarray"):
        values[key] = trees.mutated(values[key], random, trees.compact)
    elif random.random() < 0.5:
        values[key] = mutations.mutated(values[key], random)
    else:
        del values[key]
    return written(files, values)


def database(files: Files) -> dict[bytes, bytes]:
    """The values of an OCDBT database."""
    return _in_database(
        files, lambda store: {k: store[k] for k in store.list().result()}
    )


def _in_database(files: Files, act: Callable[[Any], Any]) -> Any:
    import tempfile

    import tensorstore as ts

    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            if name.startswith(f"{_STATE}/") and not name.endswith("_METADATA"):
                path = Path(directory, name.removeprefix(f"{_STATE}/"))
                path.parent.mkdir(exist_ok=True, parents=True)
                path.write_bytes(content)
        base = {"driver": "file", "path": f"{directory}/"}
        config = {"max_inline_value_bytes": 1024}
        spec = {"driver": "ocdbt", "base": base, "config": config}
        done = act(ts.KvStore.open(spec).result())
        return done or {
            f"{_STATE}/{path.relative_to(directory)}": path.read_bytes()
            for path in Path(directory).rglob("*")
            if path.is_file()
        }


def written(files: Files, values: dict[bytes, bytes]) -> dict[str, bytes]:
    """The files of a database with other values."""
    import tensorstore as ts

    def write(store: Any) -> None:
        with ts.Transaction() as transaction:
            for key, value in values.items():
                store.with_transaction(transaction)[key] = value

    return dict(_in_database({}, write))


_FORMATS: dict[str, Callable[[Files, Random], dict[str, bytes]]] = {
    "tensorflow": _tensorflow,
    "jax": _jax,
    "torch": _torch,
}


def safetensors(raw: bytes, random: Random) -> bytes:
    """Another header, with its length."""
    (length,) = struct.unpack("<Q", raw[:8])
    header = trees.mutated(raw[8 : 8 + length], random, trees.compact)
    return struct.pack("<Q", len(header)) + header + raw[8 + length :]


def zip_file(raw: bytes, random: Random) -> bytes:
    """Another content of one of its entries."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    at = random.randrange(len(entries))
    name, content = entries[at]
    changed = (
        trees.mutated(content, random, trees.compact)
        if name.endswith(".json") and json.loads(content)
        else mutations.mutated(content, random)
    )
    entries[at] = name, changed
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()
