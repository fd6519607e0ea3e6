"""Computes checksums inside the pipeline, for batches that Python does not see.

Only for pipelines whose batches are replayed on a resume, to check that they are the
same. A ring buffer keeps the checksums of the last batches, more than a pipeline ever
prefetches, and that of the first batch is kept as well.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

_SIZE = 4096


class Checksums:
    """Adds checksums to a dataset.

    Attributes:
        dataset: The dataset to iterate instead.
    """

    def __init__(self, dataset: Any) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            zeros = tf.zeros(1 + _SIZE, tf.int64)
            # Not tf.Variable, which a strategy would replace.
            self._ring = resource_variable_ops.ResourceVariable(zeros, trainable=False)
        self.dataset = dataset.enumerate().map(self._note)

    def of(self, drawn: int) -> int:
        """The checksum of batch ``drawn``, from 1, of the newest iterator."""
        index = drawn - 1
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


class ReplicaChecksums(Checksums):
    """Adds checksums to what this process draws from a distributed dataset.

    Not to the dataset itself, which TensorFlow searches for files to distribute over
    workers: it would find different files, or none.

    Args:
        distributed: A tf.distribute.DistributedDataset; it is changed.
        replicas: How many there are in this process; each draws a part of a batch.
    """

    def __init__(self, distributed: Any, replicas: int) -> None:
        (drawn_here,) = distributed._cloned_datasets
        super().__init__(drawn_here)
        distributed._cloned_datasets = [self.dataset]
        self._replicas = replicas

    def of(self, drawn: int) -> int:
        """The first replica's checksum; the last batch may have no other part."""
        return super().of((drawn - 1) * self._replicas + 1)


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
