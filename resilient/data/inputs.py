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
    """The training and validation inputs, once they are created.

    Args:
        strategy: The tf.distribute strategy that distributes batches.
        arguments: Local variables of Keras's ``fit``; for a loop, their equivalent.
        positions: The positions of the data in the checkpoint.
        replaying: See ``data.source.SourceContext``.
        share: The part that this process trains.

    Attributes:
        arguments: As given.
        drawn_ahead: Random generators that prefetching data draws from.
        validation: The validation data, once known.
        validated: Whether Keras has created its input in any attempt.
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
        self._anew = self._resumed = False
        self._shortest: int | None = None  # batches of the shortest epoch that ran out
        self.arguments, self._positions = arguments, positions
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
        """Keras created the training input; it creates the validation input later."""
        self.training = iterator
        data, before = self.arguments["validation_data"], self._positions
        self.validation = ahead_of_training(data, self.settings("validation_data"))
        then = before.validation_data
        if self.validation and then and not is_same(self.validation, then.fingerprint):
            self._positions = replace(before, validation_data=None)
        then = self._positions.validation_data
        self.validated = then is not None and then.made

    def move(self, position: TrainingPosition | None) -> None:
        """The training data is different: set its position; None starts it fresh."""
        self._positions = replace(self._positions, x=position)
        self._anew = position is None

    def resume(self, batch: int) -> None:
        """Make the next epoch start at ``batch``, at the saved positions."""
        x, validation = self._positions.x, self._positions.validation_data
        assert self.training is not None
        self._resumed = not self._anew
        if x is not None:
            self._shortest = x.shortest
            self.training.resume_at(x, batch)
        elif not self._anew:
            raise MalformedError("no position in the training data")
        if self.validation is not None and validation is not None:
            self.validation.resume(validation.data)

    def check_length(self, given: int, known: int | None) -> None:
        """Refuse an epoch of a resumed run whose data ran out earlier than before.

        But for a generator, which is drawn from once: its first epoch takes all of it.

        Args:
            given: Its batches.
            known: As many as the data has; None: unknown.

        Raises:
            DataNotResumableError: Unless ``on_data_change="warn"``.
        """
        least = known if self._shortest is None else self._shortest
        self._shortest = min(given, least or given)
        if not self._resumed or least is None or given >= least:
            return
        assert self.training is not None
        if self.training.data_adapter.fingerprint()["kind"] != "generator":
            self._settings.options.refuse(
                "An epoch ended too early after a resume: the data changed, did not "
                "return to its position, or has another length in each epoch.",
                received=f"{given:,} batches in this epoch, {least:,} expected",
                hint="Use the same data as before.",
            )

    def knows_validation(self, adapter: Positioned) -> bool:
        """Whether the validation data is that of the position; warns if not."""
        before = self._positions.validation_data
        return before is None or is_same(adapter, before.fingerprint)

    def positions(self, *, in_epoch: bool) -> tuple[Positions, Any]:
        """Where the data is, and the random state of that moment."""
        if self.training is None:  # its old position, if any
            return self._positions, rng.capture(self.backend)
        with self.training.data_adapter.frozen():
            random = rng.capture(self.backend)
            x = self.training.position(in_epoch=in_epoch)
            x = replace(x, shortest=self._shortest)
            # Its old position, if this process has not validated yet.
            validation = self._positions.validation_data
            if self.validation is not None:
                validation = ValidationPosition(
                    made=self.validated,
                    fingerprint=self.validation.fingerprint(),
                    data=self.validation.position(0, held=False),
                )
            self._positions = Positions(x=x, validation_data=validation)
        return self._positions, random
