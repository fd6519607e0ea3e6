"""One process's snapshots: its part of all tensors, and the JSON beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilient.backends.base import Backend, Part, Snapshot
from resilient.saving import record
from resilient.saving.run_json import RunJson
from resilient.state.variables import Leaf


class SnapshotTaker:
    """Takes one snapshot after the other, each in the memory of the one before.

    Args:
        backend: The backend's adapter.
        part: Which part of a checkpoint this process makes.
    """

    def __init__(self, backend: Backend, part: Part) -> None:
        self._backend, self._part = backend, part
        self._last: Snapshot | None = None

    def take(
        self,
        run: RunJson,
        position: Any,
        live: Sequence[Leaf],
        tensors: Mapping[str, Any],
        arrays: Mapping[str, Any],
    ) -> record.PendingCheckpoint:
        """Hold the present bytes of everything.

        Args:
            run: All but the names of tensors, which are added.
            position: Where the data is, encoded.
            live: The variables.
            tensors: Their present values in this process, by name.
            arrays: What is no variable: this process's own, by name.
        """
        own = set(arrays)
        own |= {leaf.name + added for leaf in live for added in leaf.copies if added}
        if self._part.index and not self._backend.divides:
            tensors = {name: t for name, t in tensors.items() if name in own}
        every = {**tensors, **arrays}
        run = replace(
            run,
            variables=[leaf.to_json() for leaf in live],
            replicas=self._part.replicas,
            tensors=sorted(every),
            arrays=sorted(arrays),
        )
        self._last = self._backend.snapshot(every, reuse=self._last)
        part = replace(self._part, own=frozenset(own))
        return record.PendingCheckpoint(run, position, self._last, part)
