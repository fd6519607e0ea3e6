"""Checksums of batches that Python does not see, made inside the pipeline.

Only for pipelines whose batches are drawn again on a resume: whether they are the same
ones must be known. The checksums of the last batches are kept in a ring; more of them
than a pipeline ever draws ahead. That of the first batch is kept, too.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

_SIZE = 4096


class Checksums:
    """Follows a dataset.

    Attributes:
        dataset: To be iterated in its place.
    """

    def __init__(self, dataset: Any) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            zeros = tf.zeros(1 + _SIZE, tf.int64)
            # Not tf.Variable: a strategy would make something else of it.
            self._ring = resource_variable_ops.ResourceVariable(zeros, trainable=False)
        self.dataset = dataset.enumerate().map(self._note)

    def of(self, drawn: int) -> int:
        """That of batch ``drawn``, counted from 1, of the newest iterator."""
        index = drawn - 1
        return int(self._ring.numpy()[index and 1 + index % _SIZE])

    def forget_first(self) -> None:
        """Until the next first batch, its checksum is 0."""
        self._ring.scatter_nd_update([[0]], [0])

    def _note(self, index: Any, batch: Any) -> Any:
        total = tf.constant(0, tf.int64)
        for tensor in tf.nest.flatten(batch, expand_composites=True):
            for part in (tf.shape(tensor), tensor):
                total = total * 31 + _checksum(part)
        place = tf.where(index == 0, index, 1 + index % _SIZE)
        self._ring.scatter_nd_update([[place]], [total])
        return batch


class ReplicaChecksums(Checksums):
    """Follows what this process draws of a distributed dataset.

    Not what is distributed: TensorFlow looks through that for files to spread over
    workers, and finds none, or others, where anything was added to it.

    Args:
        distributed: A tf.distribute.DistributedDataset, which is changed.
        replicas: Of this process; each draws a part of a batch.
    """

    def __init__(self, distributed: Any, replicas: int) -> None:
        (drawn_here,) = distributed._cloned_datasets
        super().__init__(drawn_here)
        distributed._cloned_datasets = [self.dataset]
        self._replicas = replicas

    def of(self, drawn: int) -> int:
        """That of the first replica's part: the last batch may have no others."""
        return super().of((drawn - 1) * self._replicas + 1)


def _checksum(tensor: Any) -> Any:
    row = tf.reshape(tensor, [1, -1])
    found = tf.raw_ops.Fingerprint(data=row, method="farmhash64")
    return tf.bitcast(found, tf.int64)[0]
