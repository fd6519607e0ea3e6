"""Inspects an HDF5 file in its own process, since libhdf5 may hang or crash.

Wrong addresses in a file can trap it in a loop that neither a signal nor another Python
thread ends. This runs as a script that imports nothing of ours: ``python hdf5_look.py
PATH`` prints, as JSON, what ``hdf5_files`` reads.

An HDF5 file may refer to others, a group may be inside itself, and a small file may be
said, or be unpacked, to hold any amount of data. Keras writes nothing of that kind.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

_MOST = 1_000_000  # groups and datasets


def look(path: str) -> dict[str, Any]:
    """What is in a file: everything that will be read but the data themselves.

    Returns:
        ``layout`` with the shape and dtype of each dataset by its path; or ``problem``,
        the first thing that Keras does not write; or ``unreadable``, why.
    """
    import h5py

    found = {}
    try:
        with h5py.File(path, "r") as file:
            for name, item in _items(h5py, file):
                if problem := _problem(h5py, item):
                    return {"problem": f"{name!r} {problem}"}
                if isinstance(item, h5py.Dataset):
                    found[name] = (item.shape, _dtype(item))
    except Exception as error:  # of any class: it depends on the bytes
        return {"unreadable": str(error)}
    return {"layout": found}


def _items(h5py: Any, file: Any) -> Iterator[tuple[str, Any]]:
    """Everything by its path; of a link, the link itself."""
    waiting, seen = [("", file)], {file.id}
    for _ in range(_MOST):
        if not waiting:
            return
        path, group = waiting.pop()
        for name in group:
            inside = f"{path}/{name}" if path else name
            link = group.get(name, getlink=True)
            item = group[name] if isinstance(link, h5py.HardLink) else link
            if isinstance(item, h5py.Group):
                if item.id in seen:
                    item = None
                else:
                    seen.add(item.id)
                    waiting.append((inside, item))
            yield inside, item
    yield "", None


def _dtype(dataset: Any) -> str:
    """Keras stores types that HDF5 lacks as another one, and names them."""
    stored = str(dataset.dtype)
    named = str(dataset.attrs.get("dtype", stored))
    return stored if named == stored else f"{named} as {stored}"


def _problem(h5py: Any, item: Any) -> str:
    if isinstance(item, h5py.Group):
        return ""
    if not isinstance(item, h5py.Dataset):
        return "is a link, appears twice, or is one of too many"
    if item.is_virtual or item.external:
        return "has its data in another file"
    if item.dtype.hasobject or item.shape is None:
        return "is not an array of numbers"
    if item.id.get_create_plist().get_nfilters():
        return "is compressed"
    if item.chunks is not None:
        return "is in pieces"  # an index of them could be anything
    if item.id.get_storage_size() < item.size * item.dtype.itemsize:
        return "is incomplete"
    return ""


if __name__ == "__main__":
    json.dump(look(sys.argv[1]), sys.stdout)
