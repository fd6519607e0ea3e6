"""Arrays on torch: Keras's own batch sampler, drawn again, skipping indices only.

Keras builds a ``DataLoader`` without workers over a batch sampler that draws from
torch's global generator when its first batch is asked for. We stand in front of that
batch sampler: we keep the generator's state as it was before the draw, repeat the draw
from it in a resumed epoch, and skip the indices of the batches trained before.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from resilient.backends.torch import decode_state, encode_state
from resilient.data import JSON
from resilient.data.arrays import SeekableArrays


class TorchArrays(SeekableArrays):
    """Array input of the torch trainer."""

    _order: str | None = None  # random state that drew the permutation in use
    share: Callable[[str], str] | None = None  # with several processes

    def position(self, drawn: int, *, held: bool) -> JSON:
        return {"drawn": drawn, "order": self._order} if drawn else {"drawn": 0}

    def get_torch_dataloader(self) -> Any:
        loader = super().get_torch_dataloader()
        return torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=_SeekableBatches(loader.batch_sampler, self),
            collate_fn=loader.collate_fn,
        )

    def draw(self, batches: Any) -> Iterator[list[int]]:
        """The indices of each batch, from the position on.

        Runs when the first batch is asked for, where Keras's own sampler draws too.
        """
        start = self._take_start()
        first = start.get("drawn", 0)
        if self._shuffle == "batch":  # each batch draws on its own, when its turn comes
            plain = itertools.islice(batches.sampler, first, None)
            for batch in plain:
                draw = functools.partial(torch.randperm, len(batch))
                alone = self.share is None
                order = draw() if alone else self._drawn(draw, self._state())
                yield self.own([batch[i] for i in order])
            return
        self._order = start.get("order")
        if self._order is None:
            self._order = self._state()
            indices = self._drawn(lambda: _begun(batches, first), self._order)
        else:
            with _from_state(self._order):
                indices = _begun(batches, first)
        yield from map(self.own, indices)

    def own(self, batch: list[int]) -> list[int]:
        """The part of a batch that this process trains."""
        return batch

    def _state(self) -> str:
        """The random state that all processes draw from."""
        state = encode_state(torch.get_rng_state())
        return state if self.share is None else self.share(state)

    def _drawn(self, draw: Callable[[], Any], state: str) -> Any:
        """What is drawn from a state. This process's own goes on, as if it drew."""
        if state == encode_state(torch.get_rng_state()):
            return draw()
        with _from_state(state):
            drawn = draw()
        draw()
        return drawn


def _begun(batches: Any, first: int) -> Iterator[list[int]]:
    """The batches from ``first`` on, of a permutation that is drawn now."""
    indices = itertools.islice(iter(batches), first, None)
    head = list(itertools.islice(indices, 1))
    return itertools.chain(head, indices)


@contextlib.contextmanager
def _from_state(state: str) -> Iterator[None]:
    """Draw from a state; the generator is left as it was."""
    now = torch.get_rng_state()
    torch.set_rng_state(decode_state(state))
    try:
        yield
    finally:
        torch.set_rng_state(now)


class _SeekableBatches(torch.utils.data.Sampler):  # type: ignore[misc]
    """A batch sampler that starts where the adapter says."""

    def __init__(self, batches: Any, adapter: TorchArrays) -> None:
        self._batches = batches
        self._adapter = adapter

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return self._adapter.draw(self._batches)
