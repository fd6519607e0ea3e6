"""How much memory a database's nodes may take, before TensorStore decodes them.

Nodes are compressed with Zstandard: 32 kB of them can hold a gigabyte. Each begins with
one of three marks. Where TensorStore goes through a database by itself, all files are
searched for these.

Sources: https://google.github.io/tensorstore/kvstore/ocdbt/ ("Storage format"), and
RFC 8878, section 3.1.1.
"""

import re
import struct
from collections.abc import Generator, Iterator

from resilient.backends.stored_files import StoredFiles, corrupt

# Of a manifest, a B-tree node and a version tree node.
_MARKS = re.compile(rb"\x0c\xdb(?:\x3a\x2a|\x20\xde|\x12\x34)")
_MARK = 4  # bytes
_FRAME, _SKIPPED = 0xFD2FB528, 0x184D2A5
_BLOCK = 1 << 17  # bytes; no block is decoded to more
_LEAST = 1 << 10  # bytes that each counts for, or empty ones would be counted for hours
EACH = 1 << 13  # bytes, more than there are of an array that nodes have in them
_MORE = 1 << 26  # bytes beside these
_REPEATED, _COMPRESSED = 1, 2  # kinds of blocks; others stand as they are


class Bound:
    """How much nodes may be decoded to, all together.

    Args:
        most: In bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, name: str, data: memoryview, begin: int) -> None:
        """Count the node that begins there.

        Args:
            name: Of the file, for the error.
            data: What the node is in.
            begin: Where its mark is.

        Raises:
            CorruptCheckpointError: It may be decoded to more than is left.
        """
        for size in _decoded(data, begin + _MARK):
            self.count(name, max(size, _LEAST))

    def count(self, name: str, size: int) -> None:
        """Count bytes that stand in the file as they are."""
        self._left -= size
        if self._left < 0:
            raise corrupt(f"{name} has nodes far larger than all of the files")


def require_bounded(files: StoredFiles, arrays: int) -> None:
    """Check that nodes are decoded to little more than the files have.

    Args:
        files: Of the database.
        arrays: How many are in it: files have zeros in few bytes.

    Raises:
        CorruptCheckpointError: They may be decoded to far more.
    """
    bound = Bound(sum(files.sizes.values()) + _MORE + arrays * EACH)
    for name in files.sizes:
        data = files.mapped(name)
        for mark in _MARKS.finditer(data):
            bound.take(name, data, mark.start())


def _decoded(data: memoryview, at: int) -> Iterator[int]:
    """At most so many bytes come from each piece of the node after a mark."""
    at = _after_number(data, at + 8)  # its length and version
    yield 0
    compressed, at = bytes(data[at : at + 1]) != b"\0", _after_number(data, at)
    while compressed and at + 8 <= len(data):
        magic, size = struct.unpack_from("<II", data, at)
        if magic >> 4 == _SKIPPED:
            at += 8 + size
            yield 0
        elif magic == _FRAME:
            at = yield from _blocks(data, at + 4)
        else:
            return


def _after_number(data: memoryview, at: int) -> int:
    """Where a number of variable length ends."""
    end = at + 10
    while at < end and bytes(data[at : at + 1]) >= b"\x80":
        at += 1
    return at + 1


def _blocks(data: memoryview, at: int) -> Generator[int, None, int]:
    """The same of each block of a frame; returns where the frame ends."""
    descriptor = data[at]
    of_whole, single = descriptor >> 6, descriptor >> 5 & 1
    at += 1 + (not single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[of_whole]
    last = 0
    while not last and at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        yield _BLOCK if kind == _COMPRESSED else size
        at += 3 + (1 if kind == _REPEATED else size)
    return at + 4 * (descriptor >> 2 & 1)  # a checksum
