"""The state of a run, as far as ``fit`` and custom loops share it.

The attempt decides when to save and tracks the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilient.backends.base import Backend, Part, Snapshot
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import RunJson
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import to_json
from resilient.state import rng, variables
from resilient.training.inexact import InexactWarnings


class RunState:
    """The state of a run, taken between two batches.

    Args:
        backend: The backend's adapter.
        part: Which part of a checkpoint this process writes.
    """

    def __init__(self, backend: Backend, part: Part) -> None:
        self._backend, self._part = backend, part
        self._leaves: list[variables.Leaf] = []  # as saved, or restored
        self._warnings = InexactWarnings()

    def after_step(self) -> bool:
        """A training step was done; whether to tell of the next one, too."""
        return False

    def leaves_after(self, step: int) -> list[Any]:
        """A few tensors of the state to digest after a step: others each time."""
        raise NotImplementedError

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
        reuse: Snapshot | None,
    ) -> record.PendingCheckpoint:
        """Take a snapshot of everything.

        Args:
            progress: Where training is.
            positions: Where the data is.
            random: The random state of this moment.
            logs: Those of the last epoch that ended.
            reuse: An earlier snapshot, whose memory may be overwritten.
        """
        raise NotImplementedError

    def _snapshot(
        self,
        run: RunJson,
        positions: Positions,
        live: Sequence[variables.Leaf],
        tensors: Mapping[str, Any],
        arrays: dict[str, Any],
        *,
        reuse: Snapshot | None,
    ) -> record.PendingCheckpoint:
        """Copy the current bytes of everything.

        Args:
            run: The record, to which the names of tensors are added.
            positions: Where the data is.
            live: The variables.
            tensors: Their current values in this process, by name.
            arrays: This process's arrays that are not variables, by name.
            reuse: As in ``take``.
        """
        position = encode(to_json(positions), arrays, "data")
        own = set(arrays)
        own |= {leaf.name + added for leaf in live for added in leaf.copies if added}
        if self._part.index and not self._backend.spreads:
            tensors = {name: t for name, t in tensors.items() if name in own}
        every = {**tensors, **arrays}
        run = replace(
            run,
            variables=[leaf.to_json() for leaf in live],
            replicas=self._part.replicas,
            tensors=sorted(every),
            arrays=sorted(arrays),
        )
        taken = self._backend.snapshot(every, reuse=reuse)
        part = replace(self._part, own=frozenset(own))
        return record.PendingCheckpoint(run, position, taken, part)

    def _restore_random(self, saved: Any, drawn_ahead: set[str | int]) -> None:
        """Set the random state, after everything else, since restoring may draw.

        Args:
            saved: The random state.
            drawn_ahead: Generators that prefetching data draws from; they stay where
                the data left them.
        """
        left = rng.drawn_from(saved, rng.capture(self._backend)) & drawn_ahead
        self._warnings.drawn_ahead(sorted(left))
        rng.restore(self._backend, saved, leave=left)
