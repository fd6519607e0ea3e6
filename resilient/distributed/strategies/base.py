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

    The methods here do nothing: that is enough for one process, and for a library that
    does everything by itself.

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
            text: ASCII, at most ``LENGTH`` characters; only that of process 0 counts.
        """
        raise NotImplementedError

    def training(self, model: "keras.Model") -> contextlib.AbstractContextManager[None]:
        """Entered around Keras's ``fit``."""
        return contextlib.nullcontext()

    def begin(
        self, model: "keras.Model", group: Group, settings: Mapping[str, Any]
    ) -> None:
        """Called when everything is built, before anything is restored or trained.

        Args:
            model: Which is trained.
            group: The processes.
            settings: What they should have in common, by name.

        Raises:
            ResilientError: They have different models, or train them differently.
        """
        if self.count > 1:
            require_same_variables(leaves(model), group)
            require_same_settings(settings, group)

    def warm_up(self, model: "keras.Model", iterator: Any, backend: Backend) -> None:
        """Called before a restore: do what happens only once in a process.

        Args:
            model: Which is built; the restore overwrites any change to it.
            iterator: The training iterator of this fit.
            backend: The backend's adapter.
        """

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        """What this process trains of the batches that its data gives.

        Args:
            batches: Those that are drawn.
            data: What the user passed.
            name: What the data is called in messages.
            group: The processes.
        """
        return batches

    def draws_all(self, data: Any) -> bool:
        """Whether every process draws the same batches, and trains its part of each.

        If so, another number of processes can continue with them. If not, each process
        draws its own part of the data.

        Args:
            data: What the user passed.
        """
        return True

    def peer_lost(self) -> None:
        """Called when another process is gone, and training is over."""


def host_of(address: str) -> str:
    """The host of ``host:port``; an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def as_bytes(text: str) -> list[int]:
    """A text for a collective: always ``LENGTH`` numbers."""
    return list(text.encode("ascii").ljust(LENGTH, b"\0"))


def as_text(numbers: Iterable[int]) -> str:
    """The text again."""
    return bytes(map(int, numbers)).rstrip(b"\0").decode("ascii")
