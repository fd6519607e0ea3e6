"""Files that other libraries wrote, taken apart, changed and put together again."""

import io
import json
import struct
import zipfile
from random import Random

from . import mutations, trees


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
