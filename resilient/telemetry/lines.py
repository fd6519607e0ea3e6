"""Reads the lines of a file of events from either end, block by block.

A block without any of the wanted texts is passed over whole: there may be millions of
lines. Of a line that is too long to be ours, only the beginning is held.
"""

import os
from collections.abc import Iterator, Sequence
from typing import IO

# Far above real use: anything longer is not ours.
LONGEST = 1 << 20


def forwards(
    file: IO[bytes], having: Sequence[bytes] = ()
) -> Iterator[tuple[int, bytes]]:
    """Lines by number, from 1; an overlong one is cut, but stays overlong.

    Args:
        file: Open for reading, at its beginning.
        having: Texts, one of which a line must contain; none: every line.
    """
    before = 0  # lines
    while block := file.read(LONGEST):
        block += file.readline(LONGEST + 1)
        rest = block
        while rest and not rest.endswith(b"\n"):  # the end of the file, or overlong
            rest = file.readline(LONGEST + 1)
        if _has(block, having):
            for number, line in enumerate(_split(block), before + 1):
                if _has(line, having):
                    yield number, line
        before += block.count(b"\n") + (not block.endswith(b"\n"))


def backwards(file: IO[bytes], having: Sequence[bytes]) -> Iterator[bytes]:
    """The same from the last line to the first, without numbers."""
    end, begun = file.seek(0, os.SEEK_END), b""  # begun: of a line, found so far
    while end:
        end -= (size := min(LONGEST, end))
        file.seek(end)
        block = file.read(size)
        first = block.find(b"\n") + 1 if end else 0
        if end and not first:
            begun = (block + begun)[: LONGEST + 1]
            continue
        whole = block[first:] + begun
        if _has(whole, having):
            yield from (line for line in reversed(_split(whole)) if _has(line, having))
        begun = block[:first]


def _split(block: bytes) -> list[bytes]:
    *lines, last = block.split(b"\n")
    lines = [line + b"\n" for line in lines] + ([last] if last else [])
    return [line[: LONGEST + 1] for line in lines]


def _has(block: bytes, texts: Sequence[bytes]) -> bool:
    return not texts or any(text in block for text in texts)
