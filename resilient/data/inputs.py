"""The training and validation data of one fit, and their positions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.data import DataOptions, Positioned
from resilient.data.select import ahead_of_training, is_same
from resilient.data.shard import ShardedData
from resilient.data.source import SourceContext
from resilient.serialization.position import (
    Positions,
    TrainingPosition,
    ValidationPosition,
)
from resilient.serialization.schema import MalformedError
from resilient.state import rng


class TrainingInput(Protocol):
    """The training batches, with a position."""

    data_adapter: Positioned

    def resume_at(self, position: TrainingPosition, batch: int) -> None:
        """Make the next epoch start at ``batch``, with the data at ``position``."""

    def position(self, *, in_epoch: bool) -> TrainingPosition:
        """Where the data is, after the batches that were trained."""


class DataInputs:
    """The training input and the validation input, once they are made.

    Args:
        strategy: That of tf.distribute which batches are spread with.
        arguments: Local variables of Keras's ``fit``; of a loop, what they would be.
        positions: Where the checkpoint has the data.
        replaying: See ``data.source.SourceContext``.
        share: What this process trains of it.

    Attributes:
        drawn_ahead: Random generators that data draws from ahead of training.
        validation: The data of validation, as soon as it is known.
        validated: Whether Keras made the input for it already, in any attempt.
        only_arrays: Whether all data used so far are arrays, which have no state.
    """

    def __init__(
        self,
        strategy: Any,
        backend: Backend,
        *,
        options: DataOptions,
        arguments: Mapping[str, Any],
        positions: Positions,
        replaying: Callable[[], None],
        share: ShardedData,
    ) -> None:
        self.backend, self.share = backend, share
        self.training: TrainingInput | None = None
        self.drawn_ahead: set[str | int] = set()
        self.validation: Positioned | None = None
        self.validated = False
        self.only_arrays = False
        self._anew = False
        self._arguments, self._positions = arguments, positions
        self._settings = SourceContext(
            backend,
            options,
            verbose=arguments["verbose"] not in (0, "0"),
            strategy=strategy,
            drawn_ahead=self.drawn_ahead,
            replaying=replaying,
            share=share,
        )

    def settings(self, argument: str) -> SourceContext:
        """For the data that is ``argument`` of ``fit``."""
        x, validation = self._positions.x, self._positions.validation_data
        position = x if argument == "x" else validation
        return replace(
            self._settings,
            ahead=keras_internals.looks_ahead(),
            argument=argument,
            saved=None if position is None else position.data,
        )

    def begin(self, iterator: TrainingInput) -> None:
        """Keras made the training input; that for validation it makes later."""
        self.training = iterator
        if self._positions.x is not None:
            iterator.data_adapter.prepare(self._positions.x.data)
        data, before = self._arguments["validation_data"], self._positions
        self.validation = ahead_of_training(data, self.settings("validation_data"))
        then = before.validation_data
        if self.validation and then and not is_same(self.validation, then.fingerprint):
            self._positions = replace(before, validation_data=None)
        then = self._positions.validation_data
        self.validated = then is not None and then.made

    def move(self, position: TrainingPosition | None) -> None:
        """The training data is another: where it is; None where it begins as new."""
        self._positions = replace(self._positions, x=position)
        self._anew = position is None

    def resume(self, batch: int) -> None:
        """Let the next epoch start at ``batch``, at the saved positions."""
        x, validation = self._positions.x, self._positions.validation_data
        assert self.training is not None
        if x is not None:
            self.training.resume_at(x, batch)
        elif not self._anew:
            raise MalformedError("no position in the training data")
        if self.validation is not None and validation is not None:
            self.validation.resume(validation.data)

    def knows_validation(self, adapter: Positioned) -> bool:
        """Whether the position of the validation data is of this data; else warns."""
        before = self._positions.validation_data
        return before is None or is_same(adapter, before.fingerprint)

    def positions(self, *, in_epoch: bool) -> tuple[Positions, Any]:
        """Where the data is, and the random state of that moment."""
        if self.training is None:  # as it was, if it was anywhere
            return self._positions, rng.capture(self.backend)
        with self.training.data_adapter.frozen():
            random = rng.capture(self.backend)
            x = self.training.position(in_epoch=in_epoch)
            # As it was, where this process has not validated yet.
            validation = self._positions.validation_data
            if self.validation is not None:
                validation = ValidationPosition(
                    made=self.validated,
                    fingerprint=self.validation.fingerprint(),
                    data=self.validation.position(0, held=False),
                )
            self._positions = Positions(x=x, validation_data=validation)
        return self._positions, random
