"""Writes the index of a TensorFlow checkpoint, with right checksums."""

import struct
from functools import cache
from typing import Any

Entries = list[tuple[bytes, bytes]]

MAGIC = 0xDB4775248B80FB57


def table(entries: Entries, *form: Any) -> bytes:
    """An index; ``form`` is what a block of it may have otherwise."""
    data, unused = block(entries, *form), block([])
    index = block([(b"\xff", varint(0) + varint(len(data) - 5))])
    places = [(len(data), len(unused)), (len(data) + len(unused), len(index))]
    footer = b"".join(varint(start) + varint(size - 5) for start, size in places)
    return data + unused + index + footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def block(
    entries: Entries, restarts: tuple[int, ...] = (0,), kind: bytes = b"\0"
) -> bytes:
    body = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value
        for key, value in entries
    )
    body += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    return body + kind + struct.pack("<I", crc32c(body + kind))


def crc32c(data: bytes) -> int:
    """As LevelDB writes it, masked."""
    value = plain_crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def plain_crc32c(data: bytes) -> int:
    """As others write it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _table()[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found
