"""The engines that train one model in several processes: TensorFlow's, JAX's, ours.

An ``Engine`` knows which process this is, and can pass a text from process 0 to all by
a collective of the library, once, so that the processes find each other.
"""

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import keras

LENGTH = 512  # bytes that a text may have


class Engine(Protocol):
    """How a library trains one model in several processes.

    Attributes:
        index: Number of this process, from 0.
        count: How many there are.
        host: Address of process 0, as the others know it.
    """

    index: int
    count: int
    host: str

    def broadcast(self, text: str) -> str:
        """The text of process 0; called by all at the same place.

        Args:
            text: ASCII, at most ``LENGTH`` characters; the others' is not looked at.
        """


def engine_of(model: "keras.Model") -> Engine | None:
    """The engine that trains a model in several processes; None in one process.

    Raises:
        NotSupportedError: Several processes would train, each a model of its own.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    engine: Engine | None = module.engine_of(model)
    return engine


def host_of(address: str) -> str:
    """The host of ``host:port``; of IPv6 without its brackets."""
    return address.rpartition(":")[0].strip("[]")
