"""tf.data pipelines on TensorFlow, where the training step draws from the iterator."""

from typing import Any

import tensorflow as tf

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.source import SourceContext
from resilient.data.tf_data.checksums import Checksums, ReplicaChecksums
from resilient.data.tf_data.pipeline import Pipeline
from resilient.errors import DataNotResumableError
from resilient.serialization import JSON
from resilient.serialization.batches import checksum
from resilient.serialization.position import BatchMark, DataPosition


class TFData(Positioned, keras_internals.TFDatasetAdapter):  # type: ignore[misc]
    """Input of the TensorFlow trainer."""

    _dataset: Any

    def __init__(
        self,
        dataset: Any,
        *args: Any,
        settings: SourceContext,
        **kw: Any,
    ) -> None:
        if isinstance(dataset, tf.distribute.DistributedDataset):
            raise DataNotResumableError(
                "A dataset that is already distributed has no position to return to.",
                received=f"`{settings.argument}` is a tf.distribute.DistributedDataset",
                hint="Pass the tf.data.Dataset itself: it will be distributed.",
            )
        super().__init__(dataset, *args, **kw)
        self._pipeline = Pipeline(self._dataset, settings)
        self._dataset = self._pipeline.dataset
        self._checksums: Checksums | None = None
        source = settings.saved.source if settings.saved else {}
        self._distributed = distributes(settings.strategy)
        if self._distributed or ("begun" in source and "state" not in source):
            self._pipeline.replayed = True
        if self._distributed:
            # A dataset made from a graph has the graph's options, but Python does not
            # see them, and reads from options how to distribute the data.
            self._dataset = self._dataset.with_options(dataset.options())
        # A saved state can only be restored into an iterator of the same operations.
        elif self._pipeline.replayed and "state" not in source:
            self._checksums = Checksums(self._dataset)
            self._dataset = self._checksums.dataset
        self._position: DataPosition | None = None

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        self._note_first()
        last = None
        if held and drawn and self._checksums is not None:
            last = checksum(self._checksums.of(drawn))
        source = self._pipeline.position(live=held)
        return DataPosition(drawn=drawn, source=source, last=last)

    def resume(self, position: DataPosition) -> None:
        self._pipeline.resume(position.of(Pipeline.schema).source)

    def seek(self, position: DataPosition) -> None:
        self._position = position.of(Pipeline.schema)

    def wrap(self, iterable: Any) -> Any:
        """The iterator that Keras is about to create."""
        if self._distributed and self._checksums is None:
            replicas = len(self._pipeline.settings.strategy.extended.worker_devices)
            self._checksums = ReplicaChecksums(iterable, replicas)
        position, self._position = self._position, None
        if position is None:
            self._note_first()
            self._pipeline.check(self._first_of, iterable)
            if self._checksums is not None:
                self._checksums.forget_first()
            return self._pipeline.begin(iterable)
        drawn = position.drawn
        live, _ = self._pipeline.seek(position.source, drawn, iterable)
        if position.last is not None and self._checksums is not None:
            before = BatchMark(given=drawn, last=position.last)
            self._pipeline.verify(self._checksums.of(drawn), before)
        return live

    def _note_first(self) -> None:
        """Keras also creates iterators that it never draws from."""
        if self._checksums is not None and (first := self._checksums.of(1)):
            self._pipeline.began(checksum(first))

    def _first_of(self, iterator: Any) -> Any:
        next(iterator, None)
        return self._checksums.of(1) if self._checksums is not None else None

    def fingerprint(self) -> JSON:
        return self._pipeline.fingerprint()


def distributes(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether Keras iterates something other than the dataset itself."""
    if strategy is None:
        return False
    count = strategy.num_replicas_in_sync
    some = tf.data.Dataset.range(count).batch(count)
    found = strategy.experimental_distribute_dataset(some)
    return isinstance(found, tf.distribute.DistributedDataset)
