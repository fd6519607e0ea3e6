"""The interface of a parallel strategy around training in several processes.

``parallel_strategy`` finds the one that a model trains with.
"""

import contextlib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.distributed import checks
from resilient.distributed.group import Group
from resilient.errors import NotSupportedError
from resilient.state.variables import leaves

_LENGTH = 512  # bytes of the longest text


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
            text: ASCII, at most ``_LENGTH`` characters; only process 0's counts.
        """
        numbers = self._broadcast(list(text.encode("ascii").ljust(_LENGTH, b"\0")))
        return bytes(map(int, numbers)).rstrip(b"\0").decode("ascii")

    def _broadcast(self, numbers: list[int]) -> Iterable[int]:
        """Share process 0's bytes by a collective of the library."""
        raise NotImplementedError

    def training(self, model: keras.Model) -> contextlib.AbstractContextManager[None]:
        """Entered around Keras's ``fit``."""
        return contextlib.nullcontext()

    def begin(
        self, model: keras.Model, group: Group, settings: Mapping[str, Any]
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
            checks.require_same_variables(leaves(model), group)
            checks.require_same_settings(settings, group)

    def warm_up(self, model: keras.Model, iterator: Any, backend: Backend) -> None:
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


class KerasProcesses(ParallelStrategy):
    """Processes in which Keras itself trains: on JAX, and on torch since 3.16.

    Each trains everything its data yields; ``keras.distribution`` splits what it can.
    """

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        distribution = keras.distribution.distribution()
        shard = self.index if distribution is None else distribution.data_shard_id
        return checks.compared(batches, name, group, int(shard))

    def draws_all(self, data: Any) -> bool:
        distribution = keras.distribution.distribution()
        if distribution is None:
            return False
        kind = keras_internals.data_kind(data)
        divided = kind == "TFDatasetAdapter" and distribution.auto_shard_dataset
        return bool(divided or distribution.num_model_replicas == 1)


def parallel_strategy(strategy: Any, *, by_hand: bool = False) -> ParallelStrategy:
    """The strategy by which this process trains together with others.

    Args:
        strategy: The tf.distribute strategy on TensorFlow; else None.
        by_hand: Whether the loop is the user's own, not Keras's ``fit``.

    Raises:
        NotSupportedError: Each of several processes would train its own model.
    """
    module = importlib.import_module(f"{__package__}.{keras.backend.backend()}")
    parallel: ParallelStrategy | None = module.parallel_strategy(
        strategy, by_hand=by_hand
    )
    return parallel or ParallelStrategy()


def models_of_their_own(received: str) -> NotSupportedError:
    """The error if each process would train its own model.

    Args:
        received: What indicates several processes, and what is missing.
    """
    return NotSupportedError(
        "The processes are not connected: each would train its own model.",
        received=received,
        hint="First call keras.distribution.initialize(), then "
        "keras.distribution.set_distribution(keras.distribution.DataParallel()), or "
        "ModelParallel with a layout map, before you create the model.",
    )


def host_of(address: str) -> str:
    """The host of ``host:port``; an IPv6 address without its brackets."""
    return address.rpartition(":")[0].strip("[]")
