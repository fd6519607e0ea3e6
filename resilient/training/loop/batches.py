"""Iterates over the batches of a loop's data in order, from any position.

Each epoch creates a new iterator of the data, as ``for batch in data`` does; with
``steps_per_epoch`` the epochs share one for as long as it yields batches.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any

import keras
from keras.utils import PyDataset, unpack_x_y_sample_weight

from resilient import keras_internals
from resilient.data.inputs import DataInputs
from resilient.data.iterable import BatchList
from resilient.data.select import adapter_for, are_arrays, require_data
from resilient.data.source import SourceContext
from resilient.data.tracked import TrackedAdapter
from resilient.errors import DataNotResumableError, NotSupportedError, message
from resilient.saving import reshard
from resilient.serialization.position import TrainingPosition
from resilient.state.rng import kept_random_state
from resilient.training.session import Session


@dataclass(frozen=True)
class BatchOptions:
    """How a loop iterates over its data.

    Attributes:
        batch_size: For arrays; None means 32.
        shuffle: For arrays and PyDatasets; None means shuffled.
        steps_per_epoch: Batches per epoch; None: as many as the data has.
    """

    batch_size: int | None = None
    shuffle: Any = None
    steps_per_epoch: int | None = None


class Batches:
    """The batches of one loop.

    Args:
        data: What the user passed.
        options: How to iterate over it.
        inputs: Tracks the positions of the data.
        session: The processes, and how they train together.
    """

    data_adapter: Any

    def __init__(
        self, data: Any, options: BatchOptions, inputs: DataInputs, session: Session
    ) -> None:
        self.data, self.options = data, options
        self._inputs = inputs
        strategy, spread = session.strategy, False
        if strategy is not None:  # of TensorFlow
            from resilient.data.tf_data.adapter import distributes

            spread = distributes(strategy)  # batches, over replicas
        settings = replace(inputs.settings("x"), as_given=not spread)
        with kept_random_state(inputs.backend) if settings.saved else nullcontext():
            # The uninterrupted run created it earlier: leave no trace now.
            adapter: Any = _adapter(data, options, settings)
        self._steps = options.steps_per_epoch
        limits = self._steps, keras.config.max_steps_per_epoch()
        self._most = min(filter(None, limits), default=None)  # of an epoch
        self.data_adapter = adapter  # Keras's adapter, with a position
        self._drawn_by_all = session.parallel.draws_all(data)
        inputs.share.divide(adapter, data, "x", self._steps)
        self._iterable = _iterable(adapter, strategy, spread=spread)
        self._live: Iterator[Any] | None = None
        self._drawn = 0  # from the live iterator
        self._batch = 0  # of the epoch
        self._position: TrainingPosition | None = None
        self._begun = False
        self._length = adapter.num_batches

    def require_same(self, data: Any, options: BatchOptions) -> None:
        """Raise DataNotResumableError if the data differs from the previous epoch's."""
        before, now = _unpacked(self.data), _unpacked(data)
        alike = all(before[name] is now[name] for name in before)
        if alike and options == self.options:
            return
        raise DataNotResumableError(
            "The data, or how it is iterated, changed between epochs, so the end of "
            "an epoch has no position.",
            received=f"{type(data).__name__}, {options}",
            hint="Create the data once, before the loop; or give each its own "
            "run.loop.",
        )

    def fingerprint(self) -> dict[str, Any]:
        """What the data is, and how to iterate over it."""
        found: dict[str, Any] = self.data_adapter.fingerprint()
        return {**found, "steps_per_epoch": self._steps}

    def resume_at(self, position: TrainingPosition, batch: int) -> None:
        """Make the next epoch start at ``batch``, with the data at ``position``."""
        reshard.require_same_batches(position, drawn_by_all=self._drawn_by_all)
        with kept_random_state(self._inputs.backend, leave=self._inputs.drawn_ahead):
            self.data_adapter.resume(position.data)
        self._position, self._batch = position, batch
        # If an iterator is held, recreate that one.
        self._begun = position.begun and not position.held

    def position(self, *, in_epoch: bool) -> TrainingPosition:
        """Where the data is, after the batches that were trained."""
        held = in_epoch or (self._steps is not None and self._live is not None)
        drawn = self._drawn if held else 0
        return TrainingPosition(
            held=held,
            drawn_by_all=self._drawn_by_all,
            begun=self._begun,
            data=self.data_adapter.position(drawn, held=held),
        )

    def begin_epoch(self, replay: AbstractContextManager[None]) -> None:
        """Create the iterator of an epoch, unless the last one continues.

        Args:
            replay: Entered while the data returns to a position.
        """
        self.data_adapter.on_epoch_begin()
        position, self._position = self._position, None
        if position is None:
            self._batch = 0
            if self._live is None:
                self._begin()
        elif position.held:
            with replay:
                self.data_adapter.seek(position.data)
                self._begin()
                self._drawn = position.data.drawn
        else:
            self._begin()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        """The next batch of the epoch.

        Raises:
            StopIteration: There is none.
            DataNotResumableError: The data should have one more.
        """
        if self._most is not None and self._batch >= self._most:
            raise StopIteration
        assert self._live is not None
        try:
            batch = next(self._live)
        except StopIteration:
            if self._batch and self._steps is None:
                known = self.data_adapter.sure_length
                self._inputs.check_length(self._batch, known)
                raise
            if self._batch or not self._drawn:
                raise self._ran_out() from None
            self._begin()  # the previous epoch exhausted the iterator
            return next(self)
        self._batch += 1
        self._drawn += 1
        return batch

    def trained(self) -> None:
        """The last batch handed out has been trained."""
        self.data_adapter.on_trained(self._drawn)

    def has_more(self) -> bool | None:
        """Whether the epoch has another batch; None if that is unknown."""
        if self._most is not None and self._batch >= self._most:
            return False
        return None if self._length is None else self._drawn < self._length

    def end_epoch(self) -> None:
        """The epoch is over; the next one creates a new iterator."""
        self.data_adapter.on_epoch_end()
        if self._steps is None:
            self.let_go()

    def let_go(self) -> None:
        """Drop the iterator: collecting it later could block everything."""
        self._live = None

    def _begin(self) -> None:
        if self._begun and isinstance(self.data, GeneratorType):
            # Keras would yield the first two batches again.
            raise self._ran_out()
        self._begun = True
        self.data_adapter.before_iterator()
        self._live = iter(self.data_adapter.wrap(self._iterable()))
        self._drawn = 0

    def _ran_out(self) -> DataNotResumableError:
        wanted = "at least one" if self._steps is None else f"{self._steps:,}"
        return DataNotResumableError(
            "The data ended too early. (An iterator or generator yields its batches "
            "only once, not once per epoch.)",
            received=f"{self._batch:,} batches in this epoch, expected {wanted}",
            hint="Pass data that can be iterated again in each epoch, or endless "
            "data together with steps_per_epoch.",
        )


def _unpacked(data: Any) -> dict[str, Any]:
    """``data`` as Keras's arguments: tuples of arrays are unpacked."""
    whole = {"x": data, "y": None, "sample_weight": None}
    if not isinstance(data, tuple) or not 1 <= len(data) <= len(whole):
        return whole
    apart = dict(zip(whole, unpack_x_y_sample_weight(data), strict=True))
    return apart if are_arrays(apart) else whole


def _adapter(data: Any, options: BatchOptions, settings: SourceContext) -> Any:
    if isinstance(data, list):
        if settings.as_given:
            return BatchList(data, settings)
        raise NotSupportedError(
            "A list of batches cannot be distributed over the replicas of a strategy.",
            received=f"a list of {len(data)}",
            hint="Pass a tf.data.Dataset.",
        )
    arguments = {**_unpacked(data), **vars(options), "class_weight": None}
    if options.shuffle is None:
        shuffled = are_arrays(arguments) or isinstance(data, PyDataset)
        arguments["shuffle"] = shuffled
    require_data(arguments, "data")
    return adapter_for(arguments, settings)


def _iterable(adapter: Any, strategy: Any, *, spread: bool) -> Any:
    """Makes an iterable over the batches.

    They are what the data itself yields. Arrays are split as this backend does it.
    """
    if isinstance(adapter, TrackedAdapter) and not spread:
        return adapter.as_given
    if keras_internals.BACKEND == "tensorflow":
        dataset = strategy.experimental_distribute_dataset(adapter.get_tf_dataset())
        return lambda: dataset
    jax = keras_internals.BACKEND == "jax"
    return adapter.get_jax_iterator if jax else adapter.get_torch_dataloader


def require_batches(data: list[Any], options: BatchOptions) -> None:
    """Check that a list is a list of batches, to be used as they are.

    Raises:
        TypeError: Its items could also be arrays to split into batches.
        ValueError: An argument asks to split or shuffle them.
    """
    kind = next((type(each).__name__ for each in data if not _is_batch(each)), None)
    if kind is not None:
        raise TypeError(
            message(
                "A list of arrays is ambiguous: they could be the arrays of one "
                "dataset, or one batch each.",
                received=f"a list of {len(data)}, with a {kind} in it",
                hint="For arrays pass a tuple, (x, y). For batches put each in a "
                "tuple: [(x0,), (x1,), ...] or [(x0, y0), (x1, y1), ...].",
            )
        )
    asked = {"batch_size": options.batch_size, "shuffle": options.shuffle or None}
    if name := next((name for name, value in asked.items() if value is not None), None):
        raise ValueError(
            message(
                f"`{name}` is for arrays: a list of batches is iterated as it is.",
                received=f"{name}={asked[name]!r}, and a list of {len(data)} batches",
            )
        )


def _is_batch(item: Any) -> bool:
    """Whether it can only be a batch, and not an array or rows of one."""
    if isinstance(item, list):  # what a torch DataLoader makes of a tuple
        return bool(item) and all(hasattr(part, "shape") for part in item)
    return isinstance(item, tuple | dict)
