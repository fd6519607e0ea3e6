"""Where in a zip file the bytes of its entries are; none may be compressed.

Unlike Python's ``zipfile`` it reads part of a file, copies nothing, and makes no object
before it has seen that the bytes for it are there.
"""

import struct
from collections.abc import Iterator

_END = struct.Struct("<4s4xHHIIH")
_LOCATOR = struct.Struct("<4s4xQ4x")  # of the end of a file of more than 4 GiB
_LONG_END = struct.Struct("<4s20xQQQQ")
_ENTRY = struct.Struct("<4s4xHH8xIIHHH8xI")
_LOCAL = struct.Struct("<4s22xHH")
_STORED = 0
_ENCRYPTED = 1
_IN_EXTRA = 0xFFFFFFFF  # in the place of a number: it is among the extra fields
_LONG_NUMBERS = 1  # the extra field with those
_MOST = 1 << 20  # entries


class ZipError(ValueError):
    """It is not a zip file, or has compressed entries."""


def places(data: memoryview) -> dict[str, slice]:
    """Where each entry's bytes are in ``data``, a whole zip file.

    Raises:
        ZipError: It is none, is damaged, or has compressed entries.
    """
    try:
        found = dict(_entries(data))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ZipError(f"its directory is damaged: {error}") from None
    # Or a small file could be said to hold any amount of data.
    if sum(place.stop - place.start for place in found.values()) > len(data):
        raise ZipError("its entries are larger than the file")
    return found


def _entries(data: memoryview) -> Iterator[tuple[str, slice]]:
    count, at = _directory(data)
    for _ in range(count):
        signature, flags, method, packed, size, *lengths, start = _ENTRY.unpack_from(
            data, at
        )
        if signature != b"PK\1\2":
            raise ZipError("its directory is damaged")
        name_end = at + _ENTRY.size + lengths[0]
        extra_end = name_end + lengths[1]
        name = bytes(data[at + _ENTRY.size : name_end]).decode()
        size, packed, start = _long_numbers(
            data[name_end:extra_end], [size, packed, start]
        )
        if method != _STORED or flags & _ENCRYPTED or packed != size:
            raise ZipError(f"{name} is compressed")
        yield name, _place(data, name, start, size)
        at = extra_end + lengths[2]


def _directory(data: memoryview) -> tuple[int, int]:
    """How many entries the directory has, and where it begins."""
    end = len(data) - _END.size
    if end < 0:
        raise ZipError("it is no zip file")
    signature, _, count, _, at, _ = _END.unpack_from(data, end)
    if signature != b"PK\5\6":
        raise ZipError("it is no zip file")
    if end >= _LOCATOR.size:
        signature, long_end = _LOCATOR.unpack_from(data, end - _LOCATOR.size)
        if signature == b"PK\6\7":
            signature, _, count, _, at = _LONG_END.unpack_from(data, long_end)
            if signature != b"PK\6\6":
                raise ZipError("its directory is damaged")
    if count > _MOST:
        raise ZipError(f"{count:,} entries are too many")
    return count, at


def _long_numbers(extra: memoryview, numbers: list[int]) -> list[int]:
    """Size, packed size and start, from the extra fields where they are there."""
    fields = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _LONG_NUMBERS:
            fields = bytes(extra[4 : 4 + length])
        extra = extra[4 + length :]
    for index, number in enumerate(numbers):
        if number == _IN_EXTRA:
            (numbers[index],) = struct.unpack_from("<Q", fields)
            fields = fields[8:]
    return numbers


def _place(data: memoryview, name: str, start: int, size: int) -> slice:
    signature, name_length, extra_length = _LOCAL.unpack_from(data, start)
    begin = start + _LOCAL.size + name_length + extra_length
    if signature != b"PK\3\4" or begin + size > len(data):
        raise ZipError(f"{name} is not where the directory of the zip file says")
    return slice(begin, begin + size)
