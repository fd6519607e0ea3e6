"""Bytes changed without an idea of what they are."""

import struct
from collections.abc import Callable, Sequence
from random import Random

_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
_LONG_NUMBERS = (*_NUMBERS, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """The same with one or a few changes; ``others`` are what to splice in."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        data = random.choice(_CHANGES)(data, random)
    if others and random.random() < 0.1:
        other = random.choice(others)
        a, b = _place(data, random)
        c, d = _place(other, random)
        data = data[:a] + other[c:d] + data[b:]
    return data


def _place(data: bytes, random: Random) -> tuple[int, int]:
    """A range, mostly a short one."""
    begin = random.randrange(len(data) + 1)
    length = int(2 ** random.uniform(0, random.choice((4, 16))))
    return begin, min(len(data), begin + length)


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _overwrite(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    size = random.choice("BHIQ")
    number = random.choice(_LONG_NUMBERS) % 256 ** struct.calcsize(size)
    new = struct.pack(f"{random.choice('<>')}{size}", number)
    return data[:at] + new + data[at + len(new) :]


def _varint(data: bytes, random: Random) -> bytes:
    """A number of protocol buffers, or of LevelDB."""
    at, number, new = random.randrange(len(data) + 1), random.choice(_LONG_NUMBERS), b""
    while number >= 0x80:
        new, number = new + bytes([number & 0x7F | 0x80]), number >> 7
    return data[:at] + new + bytes([number]) + data[at + random.randrange(3) :]


def _delete(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    return data[:begin] + data[end:]


def _repeat(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    return data[:begin] + data[begin:end] * random.choice((2, 2, 3, 50)) + data[end:]


def _move(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    piece, rest = data[begin:end], data[:begin] + data[end:]
    at = random.randrange(len(rest) + 1)
    return rest[:at] + piece + rest[at:]


def _insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at:]


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _zeros(data: bytes, random: Random) -> bytes:
    begin, end = _place(data, random)
    return data[:begin] + random.choice((b"\0", b"\xff")) * (end - begin) + data[end:]


_CHANGES: list[Callable[[bytes, Random], bytes]] = [
    *(_flip, _flip, _overwrite, _overwrite, _varint),
    *(_delete, _repeat, _move, _insert, _truncate, _zeros),
]
