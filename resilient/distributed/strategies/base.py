"""The interface of a parallel strategy around Keras's ``fit`` in several processes."""

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

LENGTH = 512  # bytes of the longest text


class ParallelStrategy:
    """How a library trains one model, in several processes or in one.

    The methods here do nothing, which is enough for one process, and for a library that
    does everything by itself.

    Attributes:
        index: Number of this process, from 0.
        count: How many there are.
        host: Address of process 0, as the others know it.
        divides_arrays: Whether all processes get the same arrays.
    """

    index: int = 0
    count: int = 1
    host: str = ""
    divides_arrays: bool = False

    def broadcast(self, text: str) -> str:
        """Share process 0's text by a collective; all call it at the same point.

        Args:
            text: ASCII, at most ``LENGTH`` characters; only process 0's counts.
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
            model: The model to train.
            group: The processes.
            settings: Settings that they should share, by name.

        Raises:
            ResilientError: They have different models, or train them differently.
        """
        if self.count > 1:
            require_same_variables(leaves(model), group)
            require_same_settings(settings, group)

    def warm_up(self, model: "keras.Model", iterator: Any, backend: Backend) -> None:
        """Called before a restore: do one-time work of the process.

        Args:
            model: The built model; the restore overwrites any change to it.
            iterator: The training iterator of this fit.
            backend: The backend's adapter.
        """

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        """The part of each batch that this process trains.

        Args:
            batches: The batches drawn.
            data: What the user passed.
            name: What the data is called in messages.
            group: The processes.
        """
        return batches

    def draws_all(self, data: Any) -> bool:
        """Whether every process draws the same batches and trains its part of each.

        If so, a different number of processes can continue with them. If not, each
        process draws its own part of the data.

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
    """Encode a text for a collective, as ``LENGTH`` numbers."""
    return list(text.encode("ascii").ljust(LENGTH, b"\0"))


def as_text(numbers: Iterable[int]) -> str:
    """Decode the text."""
    return bytes(map(int, numbers)).rstrip(b"\0").decode("ascii")
