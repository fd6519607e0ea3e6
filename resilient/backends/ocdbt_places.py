"""Where in the files of TensorStore's database (OCDBT) the bytes of its arrays are.

All are written outside of the database's nodes, even the smallest: so the nodes of two
databases of the same layout are alike.
"""

import os
from typing import Any

import tensorstore as ts

from resilient.backends.orbax_stored import INLINE, location
from resilient.backends.zarr_chunks import METADATA

_MANIFEST = "manifest.ocdbt"
_SIZE = "max_inline_value_bytes"


def writable(path: str) -> dict[str, Any]:
    """Where to write a database, for TensorStore."""
    return location(path, ocdbt=True) | {"config": {_SIZE: 0}}


def announce_inline_values(path: str) -> None:
    """Let a new database say what Orbax and all readers expect of its configuration."""
    manifest = ts.ocdbt.dump(_files(path)).result()
    manifest["config"][_SIZE] = INLINE
    with open(os.path.join(path, _MANIFEST), "wb") as file:
        file.write(ts.ocdbt.undump_manifest(manifest))


def of_arrays(path: str) -> dict[str, dict[str, slice]]:
    """Of a database of whole arrays, by file: the place of each that has an element."""
    files, places = _files(path), dict[str, dict[str, slice]]()
    nodes = [ts.ocdbt.dump(files).result()["versions"][-1]["root"]["location"]]
    while nodes:
        node = ts.ocdbt.dump(files, nodes.pop()).result()
        for entry in node["entries"]:
            if node["height"]:
                nodes.append(entry["location"])
                continue
            name, _, chunk = entry["key"].decode().rpartition("/")
            if chunk != METADATA:
                _, _, file, start, size = entry["indirect_value"].split(":")
                place = slice(int(start), int(start) + int(size))
                places.setdefault(file, {})[name] = place
    return places


def _files(path: str) -> ts.KvStore:
    return ts.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
