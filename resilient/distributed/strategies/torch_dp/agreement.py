"""Small facts that all ranks have to know, through a group of processes of its own.

On the host, over gloo: nothing waits for a device, and no other collective can get in
between. All ranks have to call in the same order.

Where gradients are on the host, what is told at each step goes along with a bucket of
them, as ``notes``: another message took as long as the averages of a small model.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

_BITS = 62  # of an int64, with room for its sign


class RankAgreement:
    """What the ranks tell each other."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=timeout)

    def close(self) -> None:
        distributed.destroy_process_group(self._group)

    def compare(self, *marks: int) -> list[bool]:
        """For each number, whether it is the same on all ranks: one short message."""
        told = torch.tensor([*marks, *(-mark for mark in marks)])
        self._maximum(told)
        highest, lowest = told[: len(marks)], -told[len(marks) :]
        same: list[bool] = (highest == lowest).tolist()
        return same

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set on some rank. As many on all ranks."""
        told = torch.tensor(flags, dtype=torch.uint8)
        self._maximum(told)
        found: list[bool] = told.bool().tolist()
        return found

    def gathered(self, text: str) -> list[str]:
        """The text of every rank, by rank."""
        texts: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(texts, text, group=self._group)
        return [str(each) for each in texts]

    def _maximum(self, values: torch.Tensor) -> None:
        distributed.all_reduce(values, distributed.ReduceOp.MAX, group=self._group)


_PIECE = 6  # bits; squares of pieces add up exactly in float32, of 4096 ranks
_PIECES = 8


def notes_for(numbers: Sequence[int]) -> list[float]:
    """Numbers to be summed over the ranks, which tell whether ``numbers`` are equal.

    Of each the lowest 48 bits, in pieces and their squares: the sum of squares is the
    least, for a sum, where all pieces are equal, and nowhere else.
    """
    pieces = [
        (number >> (_PIECE * i)) & (2**_PIECE - 1)
        for number in numbers
        for i in range(_PIECES)
    ]
    return [float(n) for piece in pieces for n in (piece, piece * piece)]


def are_equal(sums: Sequence[float], world: int) -> list[bool]:
    """For each number, whether it was the same on all ranks; of the sums of notes."""
    pieces = [
        world * squares == once * once
        for once, squares in zip(sums[::2], sums[1::2], strict=True)
    ]
    return [all(pieces[i : i + _PIECES]) for i in range(0, len(pieces), _PIECES)]


def mark(thing: object) -> int:
    """A number for what prints in the same way on all ranks."""
    digest = hashlib.blake2b(repr(thing).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _BITS)
