"""What a parallel strategy does around Keras's ``fit`` in several processes."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from resilient.backends.base import Backend
from resilient.distributed.checks.model import (
    require_same_settings,
    require_same_variables,
)
from resilient.distributed.group import Group
from resilient.state.variables import leaves

if TYPE_CHECKING:
    import keras

LENGTH = 512  # bytes that a text may have


class ParallelStrategy:
    """How a library trains one model, in several processes or in one.

    What is here does nothing: one process, and a library that does all by itself, need
    nothing more.

    Attributes:
        index: Number of this process, from 0.
        count: How many there are.
        host: Address of process 0, as the others know it.
        divides_arrays: Whether all processes are given the same arrays.
    """

    index: int = 0
    count: int = 1
    host: str = ""
    divides_arrays: bool = False

    def broadcast(self, text: str) -> str:
        """The text of process 0, by a collective; called by all at the same place.

        Args:
            text: ASCII, at most ``LENGTH`` characters; the others' is not looked at.
        """
        raise NotImplementedError

    def training(self, model: "keras.Model") -> contextlib.AbstractContextManager[None]:
        """Entered around Keras's ``fit``."""
        return contextlib.nullcontext()

    def begin(
        self, model: "keras.Model", group: Group, settings: Mapping[str, Any]
    ) -> None:
        """Everything is built, and no batch is trained; nothing is restored yet.

        Args:
            model: Which is trained.
            group: The processes.
            settings: What they should have in common, by name.

        Raises:
            ResilientError: They do not have the same model, or train it otherwise.
        """
        if self.count > 1:
            require_same_variables(leaves(model), group)
            require_same_settings(settings, group)

    def warm_up(self, model: "keras.Model", iterator: Any, backend: Backend) -> None:
        """A checkpoint is about to be restored: do what a process does but once.

        Args:
            model: Which is built; whatever is changed in it is overwritten.
            iterator: The training iterator of this fit.
            backend: The backend's adapter.
        """

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        """What this process trains of the batches that its data gives.

        Args:
            batches: As they are drawn.
            data: What the user passed.
            name: What that is called in messages.
            group: The processes.
        """
        return batches

    def draws_all(self, data: Any) -> bool:
        """Whether every process draws the same batches, and trains its part of them.

        Then another number of processes can go on with them. If not, each process is
        given its own part of the data.

        Args:
            data: What the user passed.
        """
        return True

    def peer_lost(self) -> None:
        """Another process is gone, and training is over."""


def host_of(address: str) -> str:
    """The host of ``host:port``; of IPv6 without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def as_bytes(text: str) -> list[int]:
    """A text for a collective: as many numbers, whatever its length."""
    return list(text.encode("ascii").ljust(LENGTH, b"\0"))


def as_text(numbers: Iterable[int]) -> str:
    """The text again."""
    return bytes(map(int, numbers)).rstrip(b"\0").decode("ascii")
