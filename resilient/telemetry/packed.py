"""A sequence of records that holds its beginning as compressed bytes.

A long run has millions of events. As Python objects each would take hundreds of bytes,
and here it takes about twenty.
"""

import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_BLOCK = 1000  # records
_encode = msgspec.msgpack.Encoder().encode


class Packed(Sequence[T], Generic[T]):
    """Records of one class; they are added at the end, and read from either.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]
        self._packed: list[tuple[int, bytes]] = []
        self._last: list[T] = []
        self._ends: list[T] = []  # the first and the last, which are asked for often

    def append(self, record: T) -> None:
        """Add a record."""
        self._last.append(record)
        self._ends = [*self._ends[:1], record]
        if len(self._last) == _BLOCK:
            self.pack()

    def pack(self) -> None:
        """Compress what has been added so far."""
        if self._last:
            raw = zlib.compress(_encode(self._last), 1)
            self._packed.append((len(self._last), raw))
            self._last = []

    def __len__(self) -> int:
        return sum(count for count, _ in self._packed) + len(self._last)

    def __iter__(self) -> Iterator[T]:
        for _, raw in self._packed:
            yield from self._unpacked(raw)
        yield from self._last

    def __reversed__(self) -> Iterator[T]:
        yield from reversed(self._last)
        for _, raw in reversed(self._packed):
            yield from reversed(self._unpacked(raw))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return list(islice(self, *at.indices(len(self))))
        if at in (0, -1):
            return self._ends[at]
        records = iter(self) if at >= 0 else reversed(self)
        for record in islice(records, at if at >= 0 else -at - 1, None):
            return record
        raise IndexError(at)

    def _unpacked(self, raw: bytes) -> list[T]:
        return self._decode(zlib.decompress(raw))
