"""tf.data pipelines: on TensorFlow, and where Keras iterates them from Python.

On TensorFlow, the training step draws from the iterator, so Python does not see the
batches. Pipelines whose batches are replayed on a resume compute checksums themselves,
to check that they are the same. A ring buffer keeps the checksums of the last batches,
more than a pipeline ever prefetches, and that of the first batch is kept as well.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.source import SourceContext
from resilient.data.tf_data import facts
from resilient.data.tf_data.pipeline import Pipeline
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.errors import DataNotResumableError
from resilient.serialization import JSON
from resilient.serialization.batches import checksum
from resilient.serialization.position import DataPosition

_SIZE = 4096  # of the ring


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
        self._pipeline.resume(position.source)

    def seek(self, position: DataPosition) -> None:
        self._position = position

    def wrap(self, iterable: Any) -> Any:
        """The iterator that Keras is about to create."""
        if self._distributed and self._checksums is None:
            # Not in the dataset itself, which TensorFlow searches for files to
            # distribute over workers: it would find different files, or none.
            replicas = len(self._pipeline.settings.strategy.extended.worker_devices)
            (drawn_here,) = iterable._cloned_datasets
            self._checksums = Checksums(drawn_here, replicas)
            iterable._cloned_datasets = [self._checksums.dataset]
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
            self._pipeline.verify(self._checksums.of(drawn), drawn, position.last)
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


class TFDataInPython(TrackedAdapter, keras_internals.TFDatasetAdapter):  # type: ignore[misc]
    """Input of the JAX and PyTorch trainers."""

    _dataset: Any

    def __init__(self, *args: Any, settings: SourceContext, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pipeline = _PipelineInPython(self._dataset, settings)
        if kwargs.get("distribution") is not None:
            # It is this dataset, whichever part this process gets.
            whole: Any = keras_internals.TFDatasetAdapter(
                *args, **{**kwargs, "distribution": None}
            )._dataset
            pipeline.facts = facts.fingerprint(whole, facts.graph_of(whole))
        self.tracked = self._dataset = _TrackedDataset(pipeline, self._dataset)

    def get_jax_iterator(self, super_batch: int | None = None) -> Any:
        one_by_one = super().get_jax_iterator()
        return keras_internals.generation.in_steps(one_by_one, super_batch)


class _PipelineInPython(Pipeline):
    """A dataset whose batches Python sees."""

    def begin(self, iterable: Any = None) -> Iterator[Any]:
        self.check(lambda iterator: next(iterator, None))
        batches: Iterator[Any] = super().begin()
        return self._noting_first(batches) if self.remembers else batches

    def _noting_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in itertools.islice(batches, 1):
            self.began(checksum(batch))
            yield batch
        yield from batches


class _TrackedDataset(TrackedIterable):
    """An iterable with the attributes of a dataset that Keras uses."""

    def __init__(self, pipeline: Pipeline, dataset: Any) -> None:
        super().__init__(pipeline)
        self.cardinality = dataset.cardinality
        self.element_spec = dataset.element_spec


def distributes(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether Keras iterates something other than the dataset itself."""
    if strategy is None:
        return False
    count = strategy.num_replicas_in_sync
    some = tf.data.Dataset.range(count).batch(count)
    found = strategy.experimental_distribute_dataset(some)
    return isinstance(found, tf.distribute.DistributedDataset)


class Checksums:
    """Adds checksums to a dataset.

    Args:
        replicas: How many there are in this process; each draws a part of a batch, and
            the first one's counts: the last batch may have no other.

    Attributes:
        dataset: The dataset to iterate instead.
    """

    def __init__(self, dataset: Any, replicas: int = 1) -> None:
        self._replicas = replicas
        with tf.init_scope(), tf.device("/CPU:0"):
            zeros = tf.zeros(1 + _SIZE, tf.int64)
            # Not tf.Variable, which a strategy would replace.
            self._ring = resource_variable_ops.ResourceVariable(zeros, trainable=False)
        self.dataset = dataset.enumerate().map(self._note)

    def of(self, drawn: int) -> int:
        """The checksum of batch ``drawn``, from 1, of the newest iterator."""
        index = (drawn - 1) * self._replicas
        return int(self._ring.numpy()[index and 1 + index % _SIZE])

    def forget_first(self) -> None:
        """Reset the first batch's checksum to 0."""
        self._ring.scatter_nd_update([[0]], [0])

    # Converting it takes long, and changes nothing.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _note(self, index: Any, batch: Any) -> Any:
        place = tf.where(index == 0, index, 1 + index % _SIZE)
        self._ring.scatter_nd_update([[place]], [_total(batch)])
        return batch


def _total(batch: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for tensor in tf.nest.flatten(batch, expand_composites=True):
        for part in (tf.shape(tensor), tensor):
            total = total * 31 + _checksum(part)
    return total


def _checksum(tensor: Any) -> Any:
    row = tf.reshape(tensor, [1, -1])
    found = tf.raw_ops.Fingerprint(data=row, method="farmhash64")
    return tf.bitcast(found, tf.int64)[0]
