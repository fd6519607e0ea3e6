"""Checks a ``.weights.h5`` file before Keras reads it: all of it is in that file.

An HDF5 file may refer to others, a group may be inside itself, and a small file may be
said, or be unpacked, to hold any amount of data. Keras writes nothing of that kind.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient.convert.matching import Layout
from resilient.errors import NotSupportedError

_MOST = 1_000_000  # groups and datasets


def layout(path: Path) -> Layout:
    """Shape and dtype of each dataset.

    Raises:
        NotSupportedError: The file has something that Keras does not write.
    """
    import h5py

    with h5py.File(path, "r") as file:
        found = {}
        for name, item in _items(h5py, file):
            if problem := _problem(h5py, item):
                raise NotSupportedError(
                    "This is no file as Keras writes it, with all of its data inside.",
                    received=f"{path}: {name!r} {problem}",
                    hint="Import a file that Keras's save_weights or save wrote.",
                )
            if isinstance(item, h5py.Dataset):
                # Keras stores types that HDF5 lacks as another one, and names them.
                dtype = str(item.attrs.get("dtype", item.dtype))
                found[name] = (tuple(item.shape), dtype)
    return found


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


def _problem(h5py: Any, item: Any) -> str:
    if isinstance(item, h5py.Group):
        return ""
    if not isinstance(item, h5py.Dataset):
        return "is a link, there twice, or one of too many"
    if item.is_virtual or item.external:
        return "has its data in another file"
    if item.dtype.hasobject or item.shape is None:
        return "is no array of numbers"
    if item.id.get_create_plist().get_nfilters():
        return "is compressed"
    if item.id.get_storage_size() < item.size * item.dtype.itemsize:
        return "is not all there"
    return ""
