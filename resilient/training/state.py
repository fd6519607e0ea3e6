"""The state of a run, as far as ``fit`` and custom loops share it.

What a resume will not reproduce bit for bit is warned of, once each.
"""

import contextlib
import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from resilient.backends.base import Backend, HeldTensors, Part
from resilient.errors import WarnOnce
from resilient.progress import Progress
from resilient.saving.run_json import RunJson
from resilient.saving.snapshot import Snapshot
from resilient.serialization import JSON
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import to_json
from resilient.state import rng, variables
from resilient.witness import samples

Inexact = str  # what a resume will not reproduce, in words

# Global random generators that continue where the data left them.
_DRAWN_AHEAD: Inexact = (
    "the data draws from these global random generators ahead of training, so anything "
    "else that uses them will draw different numbers after a resume (give the data its "
    "own generator, such as numpy.random.default_rng(seed))"
)
# Attributes that a resume resets, and where to keep them.
RESET: Inexact = (
    "these attributes changed during training but are not variables, so a resume "
    "resets them (keep what must last in {})"
)
# Attributes of callbacks, losses and others that no checkpoint holds.
NOT_SAVED: Inexact = (
    "these attributes of objects cannot be saved, so a resume resets them (give the "
    "callback state_dict() and load_state_dict() to keep them, or put your classes "
    "into keras.saving.get_custom_objects())"
)
# TensorFlow random operations that keep their state in the kernel.
OPERATIONS: Inexact = (
    "these operations in traced functions keep random state that no checkpoint can "
    "reach, so they start over after a resume (draw with keras.random and a "
    "SeedGenerator instead)"
)
# A model's training setup, and when to change it instead.
CHANGED: Inexact = (
    "a model was changed in the middle of training, so a resume will be refused (make "
    "such changes {})"
)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Put Python's garbage collector off, unless it is off anyway.

    The collector runs by the number of new objects. Those of a snapshot or of a model's
    configs are gone a moment later, but would make it look through everything that a
    large model consists of: tens to hundreds of milliseconds, while training waits.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class RunState(ABC):
    """The state of a run: captured between two batches, and restored.

    Args:
        backend: The backend's adapter.
        part: Which part of a checkpoint this process writes.
    """

    def __init__(self, backend: Backend, part: Part) -> None:
        self.backend, self._part = backend, part
        self._leaves: list[variables.Leaf] = []  # as saved, or restored
        self._warn = WarnOnce()

    @abstractmethod
    def leaves(self) -> list[variables.Leaf]:
        """Every variable."""

    @abstractmethod
    def tensors(self, live: list[variables.Leaf]) -> dict[str, Any]:
        """The current values of variables in this process, by name."""

    @abstractmethod
    def record(
        self, live: list[variables.Leaf], arrays: dict[str, Any], random: JSON
    ) -> RunJson:
        """Everything that is neither a variable nor a position.

        Args:
            live: What ``leaves`` returned.
            arrays: Receives the larger arrays.
            random: The random state of this moment.
        """

    def after_step(self) -> bool:
        """A training step was done; returns whether to call this after the next one."""
        return False

    def leaves_after(self, step: int) -> list[Any]:
        """A few tensors of the state to digest after a step: others each time."""
        self._leaves = self._leaves or self.leaves()
        return list(self.tensors(samples.chosen(self._leaves, step)).values())

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: JSON,
        *,
        reuse: HeldTensors | None,
    ) -> Snapshot:
        """Copy the current bytes of everything.

        Args:
            progress: Where training is.
            positions: Where the data is.
            random: The random state of this moment.
            reuse: An earlier snapshot, whose memory may be overwritten.
        """
        arrays: dict[str, Any] = {}
        live = self._leaves = self.leaves()
        run = self.record(live, arrays, random)
        position = encode(to_json(positions), arrays, "data")
        own = {*arrays, *(x.name + added for x in live for added in x.copies if added)}
        every = self.tensors(live)
        if self._part.index and not self.backend.spreads:
            every = {name: value for name, value in every.items() if name in own}
        run = replace(
            run,
            variables=variables.listed(live),
            replicas=self._part.replicas,
            arrays=sorted(arrays),
        )
        taken = self.backend.snapshot(every | arrays, reuse=reuse)
        part = replace(self._part, own=frozenset(own))
        return Snapshot(run, position, taken, progress, part)

    def restore_random(self, saved: JSON, drawn_ahead: set[str | int]) -> None:
        """Set the random state.

        Args:
            saved: The random state.
            drawn_ahead: Generators that prefetching data draws from; they stay where
                the data put them.
        """
        kept = rng.drawn_from(saved, rng.capture(self.backend)) & drawn_ahead
        self._warn(_DRAWN_AHEAD, sorted(kept))
        rng.restore(self.backend, saved, leave=kept)
