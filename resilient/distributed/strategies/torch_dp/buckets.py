"""Gradients of several ranks, averaged in buckets.

A bucket is a flat tensor of about 25 MB: one collective for many small gradients, the
first of which can run while the last are still computed. The layout follows from the
variables alone. It decides in which order ranks are summed, so equal layouts give equal
bytes: on all ranks, from run to run, and however early a bucket is on its way.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

MOST_RANKS = 4096  # that notes are exact for
BUCKET_BYTES = 25 * 2**20
FIRST_BYTES = 2**20  # small: it can be sent while most gradients are not there yet


class Buckets:
    """Flat tensors, with a place for each gradient.

    Attributes:
        averages: By place; what the bucket holds there, in the shape of the variable.
        bucket_of: By place; the bucket that it is in.
        sizes: By bucket; how many places it has.
        notes: Room in the last bucket for what ranks tell each other, where reading it
            does not wait for a device.
    """

    def __init__(self, like: Sequence[torch.Tensor], group: Any, notes: int) -> None:
        self._group = group
        self.world = distributed.get_world_size(group)
        self._flat: list[torch.Tensor] = []
        self._works: list[Any] = []
        self.averages: list[torch.Tensor] = [torch.empty(0)] * len(like)
        self.bucket_of = [0] * len(like)
        self.sizes: list[int] = []
        self.notes: torch.Tensor | None = None
        layout = _layout(like)
        last = like[layout[-1][0]]
        exact = last.dtype in (torch.float32, torch.float64)
        if last.device.type != "cpu" or not exact or self.world > MOST_RANKS:
            notes = 0
        for places in layout:
            self._add(places, like, notes if places is layout[-1] else 0)
        if notes:
            self.notes = self._flat[-1][-notes:]

    @property
    def sent(self) -> int:
        """How many are on their way; always the first ones, in order."""
        return len(self._works)

    @property
    def count(self) -> int:
        return len(self._flat)

    def put(self, place: int, gradient: torch.Tensor | None) -> None:
        """Write this rank's share of an average; of no gradient it is zero."""
        share = self.averages[place]
        if gradient is None:
            share.zero_()
        else:
            torch.div(gradient.detach(), self.world, out=share)

    def send(self) -> None:
        """Begin to sum the next bucket over all ranks."""
        flat = self._flat[self.sent]
        work = distributed.all_reduce(flat, group=self._group, async_op=True)
        self._works.append(work)

    def send_all(self) -> None:
        """Send those that are left."""
        while self.sent < self.count:
            self.send()

    def finish(self) -> None:
        """Send those that are left, and wait for all."""
        self.send_all()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _add(
        self, places: Sequence[int], like: Sequence[torch.Tensor], more: int
    ) -> None:
        first = like[places[0]]
        sizes = [like[place].numel() for place in places]
        flat = torch.zeros(sum(sizes) + more, dtype=first.dtype, device=first.device)
        parts = flat[: sum(sizes)].split(sizes)
        for place, part in zip(places, parts, strict=True):
            self.averages[place] = part.view(like[place].shape)
            self.bucket_of[place] = self.count
        self._flat.append(flat)
        self.sizes.append(len(places))


def _layout(like: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of each bucket.

    From the last variable to the first, as a backward pass computes their gradients.
    """
    filled: list[list[int]] = []
    open_ones: dict[Any, list[int]] = {}
    held: dict[Any, int] = {}
    for place in reversed(range(len(like))):
        kind = (like[place].dtype, like[place].device)
        open_ones.setdefault(kind, []).append(place)
        held[kind] = held.get(kind, 0) + like[place].nbytes
        if held[kind] >= (BUCKET_BYTES if filled else FIRST_BYTES):
            filled.append(open_ones.pop(kind))
            held[kind] = 0
    return filled + list(open_ones.values())
