"""Selects the part of the data that each of several processes trains."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from resilient import keras_internals
from resilient.distributed.checks import (
    in_step,
    require_same_arrays,
    require_same_length,
)
from resilient.distributed.group import ALONE, Group
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.serialization import JSON

# The methods by which Keras or a loop gets batches from an adapter in Python.
_WAYS = {
    "tensorflow": (),
    "jax": ("get_jax_iterator", "as_given"),
    "torch": ("get_torch_dataloader", "get_numpy_iterator", "as_given"),
}


@dataclass(frozen=True)
class ShardedData:
    """A process's share.

    Attributes:
        parallel: How the processes train one model.
        group: These processes.
    """

    parallel: ParallelStrategy = field(default_factory=ParallelStrategy)
    group: Group = ALONE

    def seed(self, bits: int) -> int:
        """A random number of this many bits, the same in all processes."""
        mine = 0 if self.group.index else secrets.randbits(bits)
        return int(self.group.broadcast("seed", mine))

    def divide(self, adapter: Any, data: Any, name: str, steps: int | None) -> None:
        """Make a Keras adapter yield only what this process trains.

        Args:
            adapter: Yields everything that this process draws.
            data: What the user passed.
            name: Its name in messages.
            steps: Batches per epoch, if limited.

        Raises:
            ResilientError: Another process has more batches, or fewer.
        """
        if self.parallel.count == 1:
            return
        length = adapter.num_batches
        require_same_length([length, steps], name, self.group)
        if getattr(adapter, "gives_own_rows", False):
            return
        for way in _WAYS[keras_internals.BACKEND]:
            plain = getattr(adapter, way, None)
            if plain is None:  # arrays, which are not yielded as they are
                continue
            rows = partial(self._rows, plain, data, name, unknown=length is None)
            setattr(adapter, way, rows)

    def _rows(
        self,
        draw: Callable[[], Iterable[Any]],
        data: Any,
        name: str,
        *,
        unknown: bool,
        super_batch: int | None = None,
    ) -> Iterable[Any]:
        mine = self.parallel.rows(draw(), data, name, self.group)
        mine = in_step(mine, name, self.group) if unknown else mine
        return keras_internals.generation.in_steps(mine, super_batch)

    def require_same(self, fingerprint: JSON) -> None:
        """Check that all processes have the same arrays, if each trains a part.

        Raises:
            DataNotResumableError: Names the processes.
        """
        if self.parallel.divides_arrays and fingerprint["kind"] == "arrays":
            require_same_arrays(fingerprint, "x", self.group)
