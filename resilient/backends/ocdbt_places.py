"""Where in the files of TensorStore's database (OCDBT) the bytes of its arrays are.

All are written outside of the database's nodes, even the smallest: so the nodes of two
databases of the same layout are alike. TensorStore decodes the nodes, one at a time and
from memory, so that it opens no file that they name.

Source: https://google.github.io/tensorstore/kvstore/ocdbt/ ("Storage format").
"""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorstore as ts

from resilient.backends.ocdbt_nodes import EACH, Bound
from resilient.backends.orbax_stored import INLINE, location
from resilient.backends.stored_files import StoredFiles, corrupt
from resilient.backends.zarr_chunks import METADATA

_MANIFEST = "manifest.ocdbt"
_SIZE = "max_inline_value_bytes"
FILES = "d/" + "[0-9a-f]" * 32  # a pattern of file names
_LOCATION = re.compile(r"(btreenode|value)::(d/[0-9a-f]{32}):(\d{1,18}):(\d{1,18})")
# Bytes of a node: TensorStore writes a quarter, but in blocks that could have twice as
# many, which count beside what they are compressed to.
_LARGEST = 1 << 25
_MORE = 1 << 20  # bytes of nodes, beside those for each array


class Place(NamedTuple):
    """Bytes of a file."""

    file: str
    at: slice


def writable(path: str) -> dict[str, Any]:
    """Where to write a database, for TensorStore."""
    return {"driver": "ocdbt", "base": location(path), "config": {_SIZE: 0}}


def announce_inline_values(path: str) -> None:
    """Let a new database say what Orbax and all readers expect of its configuration."""
    files = ts.KvStore.open(location(path)).result()
    manifest = ts.ocdbt.dump(files).result()
    manifest["config"][_SIZE] = INLINE
    with open(os.path.join(path, _MANIFEST), "wb") as file:
        file.write(ts.ocdbt.undump_manifest(manifest))


def of_arrays(path: str) -> dict[str, dict[str, slice]]:
    """Of a database of whole arrays, by file: the place of each that has an element.

    Args:
        path: Of a database that this process has written.
    """
    places = dict[str, dict[str, slice]]()
    for key, value in _entries(StoredFiles(path, None), Bound(sys.maxsize)):
        name, _, chunk = key.rpartition("/")
        if chunk != METADATA and isinstance(value, Place):
            places.setdefault(value.file, {})[name] = value.at
    return places


def of_values(files: StoredFiles, arrays: int) -> dict[str, bytes | Place]:
    """What the newest version of a database has for each key, or where that is.

    Args:
        files: Of the database.
        arrays: How many are in it, at most.

    Raises:
        CorruptCheckpointError: It is no database, or has far more nodes than these
            need.
    """
    return dict(_entries(files, Bound(_MORE + arrays * EACH)))


def _entries(files: StoredFiles, bound: Bound) -> Iterator[tuple[str, bytes | Place]]:
    whole = slice(0, files.sizes.get(_MANIFEST, 0))
    newest = _node(files, Place(_MANIFEST, whole), bound)["versions"][-1]
    root = newest["root"].get("location")
    nodes = [] if root is None else [(root, newest["root_height"], b"")]
    while nodes:
        where, height, prefix = nodes.pop()
        node = _node(files, _place("btreenode", where), bound)
        if node["height"] != height:
            raise corrupt("the nodes of a database are no tree")
        for entry in node["entries"]:
            # A few nodes can make each of many keys very long.
            bound.count(where, len(prefix))
            if height:
                common = prefix + entry["subtree_common_prefix"]
                nodes.append((entry["location"], height - 1, common))
            elif "inline_value" in entry:
                yield (prefix + entry["key"]).decode(), entry["inline_value"]
            else:
                place = _place("value", entry["indirect_value"])
                yield (prefix + entry["key"]).decode(), place


def _place(kind: str, where: str) -> Place:
    found = _LOCATION.fullmatch(where)
    if found is None or found[1] != kind:
        raise corrupt(f"something of a database is elsewhere: {where[:100]}")
    return Place(found[2], slice(int(found[3]), int(found[3]) + int(found[4])))


def _node(files: StoredFiles, place: Place, bound: Bound) -> Any:
    """A node, or the manifest, as TensorStore describes it."""
    size = place.at.stop - place.at.start
    if size > _LARGEST:
        raise corrupt(f"{place.file} has a node of {size:,} bytes")
    (raw,) = files.pieces(place.file, [place.at])
    for each in (bound, Bound(_LARGEST)):
        each.count(place.file, size)
        each.take(place.file, memoryview(raw), 0)
    memory = ts.KvStore.open({"driver": "memory"}).result()
    memory[_MANIFEST] = raw
    is_manifest = place.file == _MANIFEST
    node = None if is_manifest else f"btreenode::{_MANIFEST}:0:{size}"
    return ts.ocdbt.dump(memory, node).result()
