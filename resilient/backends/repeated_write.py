"""Repeats what a library wrote, with other bytes where the tensors are.

From save to save only the values of a run's tensors change. Where a format has their
bytes, and all that it has around them, follows from names, shapes and dtypes. So from
the third save of a layout on, the library's files are written again without it: in a
few calls, which need neither its threads nor, for long, the interpreter.
"""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from resilient.backends.arrays import contiguous_bytes

_LAYOUTS = 8  # layouts vary within a run: data and callbacks have tensors now and then
_MOST = 512  # pieces in a call, or a few more; Linux takes up to 1024
_SMALL = 1 << 14  # bytes of a piece, which is copied to join it to those beside it
_MOST_COPIED = 1 << 20  # bytes

# Of each file that has bytes of tensors: where which tensor is.
Places = Mapping[str, Mapping[str, slice]]


@dataclass(frozen=True)
class _File:
    """A file of a layout.

    Attributes:
        path: Relative to the directory.
        pieces: Its content: bytes, or all bytes of the tensor with a name.
    """

    path: str
    pieces: list[bytes | str]


class RepeatedWrite:
    """Writes tensors into a directory as a library does.

    Args:
        find: Where the library wrote which tensor, by the path of the file in the
            directory. A file that is left out, and what is not in a place, is the same
            in every write of the layout.
    """

    def __init__(self, find: Callable[[str], Places]) -> None:
        self._find = find
        self._known: dict[Hashable, list[_File] | None] = {}

    def write(
        self,
        layout: Hashable,
        arrays: Mapping[str, np.ndarray],
        directory: str,
        write: Callable[[], None],
    ) -> None:
        """Fill an existing, empty directory.

        Args:
            layout: Of everything that is written, only values may differ while this is
                equal.
            arrays: The tensors by name.
            directory: Where.
            write: The library's own write of the same into it.

        Raises:
            OSError: The file system failed.
        """
        files = self._known.get(layout)
        if files is not None:
            _write_again(files, arrays, directory)
            return
        write()
        # Not the first time: that of a tensor which grows would never be needed.
        again = layout in self._known
        if len(self._known) >= _LAYOUTS:
            self._known.clear()
        self._known[layout] = None
        if again:
            places = self._find(directory)
            if _one_for_each(places, arrays):
                self._known[layout] = list(_files(directory, places))


def _one_for_each(places: Places, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether each array has a place of its size to itself."""
    found = [(name, file, of[name]) for file, of in places.items() for name in of]
    sizes = {name: place.stop - place.start for name, _, place in found}
    apart = {(file, place.start) for name, file, place in found if sizes[name]}
    expected = {name: array.nbytes for name, array in arrays.items() if array.nbytes}
    present = {name: size for name, size in sizes.items() if size}
    return present == expected and len(apart) == len(expected)


def _files(directory: str, places: Places) -> Iterator[_File]:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            inside = os.path.relpath(path, directory)
            found = places.get(inside.replace(os.sep, "/"), {})
            with open(path, "rb") as file:
                at, pieces = 0, list[bytes | str]()
                for tensor, place in sorted(found.items(), key=lambda x: x[1].start):
                    if place.stop > place.start:
                        file.seek(at)
                        pieces += [file.read(place.start - at), tensor]
                        at = place.stop
                file.seek(at)
                yield _File(inside, [*pieces, file.read()])


def _write_again(
    files: list[_File], arrays: Mapping[str, np.ndarray], directory: str
) -> None:
    for each in files:
        path = os.path.join(directory, each.path)
        if os.path.dirname(each.path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb", buffering=0) as file:
            for group in _groups(each.pieces, arrays):
                _write_all(file.fileno(), group)


def _groups(
    pieces: list[bytes | str], arrays: Mapping[str, np.ndarray]
) -> Iterator[list[memoryview]]:
    """The pieces of a file for one call each, with small ones joined.

    A view of each would be an object that Python's garbage collector looks at: with
    thousands it begins to collect.
    """
    group, small, copied = list[memoryview](), bytearray(), 0
    for piece in pieces:
        raw = piece if isinstance(piece, bytes) else _bytes(arrays[piece])
        if len(raw) < _SMALL:
            small += raw
            copied += len(raw)
        else:
            group += [memoryview(small), memoryview(raw)]
            small = bytearray()
        if copied >= _MOST_COPIED or len(group) >= _MOST:
            yield [*group, memoryview(small)]
            group, small, copied = [], bytearray(), 0
    yield [*group, memoryview(small)]


def _bytes(array: np.ndarray) -> bytes | memoryview:
    if array.nbytes < _SMALL:
        return array.tobytes()
    return contiguous_bytes(array)


def _write_all(file: int, pieces: list[memoryview]) -> None:
    """Write all of them, in as few calls as possible."""
    several = getattr(os, "writev", None)  # not on Windows
    at = 0
    while at < len(pieces):
        left = (
            several(file, pieces[at : at + _MOST])
            if several is not None
            else os.write(file, pieces[at])
        )
        while at < len(pieces) and left >= pieces[at].nbytes:
            left -= pieces[at].nbytes
            at += 1
        if left:
            pieces[at] = pieces[at][left:]
