"""Arrays on TensorFlow: a pipeline whose order and start are variables.

Keras draws the order with ``tf.random.shuffle`` inside a tf.data pipeline, where the
random state cannot be saved. So we draw the order outside and feed it in through a
variable:

* with a global seed (``keras.utils.set_random_seed``), and since Keras 3.16 always,
  Keras's pipeline gives the same order in every epoch: we run Keras's own pipeline on
  ``arange(samples)`` to get that order, and save what it was drawn from;
* otherwise Keras's order is arbitrary: ours comes from our own seed, drawn once per run
    and saved in the position with the number of orders drawn from it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.backends.tensorflow import BACKEND
from resilient.data.arrays.sliced import SeekableArrays
from resilient.serialization import JSON
from resilient.serialization.position import DataPosition
from resilient.state.rng import kept_random_state


def _seed() -> int | None:
    """The global seed, if there is one."""
    seed: int | None = BACKEND.random_state()["seed"]
    return seed


@contextlib.contextmanager
def _under_seed(seed: int) -> Iterator[None]:
    """Inside, the global seed is this one; the random state is left unchanged."""
    if seed == _seed():
        yield
        return
    with kept_random_state(get_backend()):  # the script's seed changed
        tf.random.set_seed(seed)
        yield


class TensorFlowArrays(SeekableArrays):
    """Array input of the TensorFlow trainer."""

    _order: JSON | None = None
    _random_state = staticmethod(_seed)
    _from_random_state = staticmethod(_under_seed)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keras_order: tuple[Any, np.ndarray] | None = None  # drawn last
        self._own_seed = self._draw_seed(63)
        self._orders_made = 0
        with tf.init_scope():
            self._start_at = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._indices = tf.Variable(
                np.arange(self.samples if self.shuffled else 0, dtype=np.int64),
                trainable=False,
            )

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        found = super().position(drawn, held=held)
        # The order is needed even if no batch was drawn: it is drawn with the iterator.
        mine: JSON = {
            "order": self._order,
            "own_seed": self._own_seed,
            "orders_made": self._orders_made,
        }
        return replace(found, source=found.source | mine)

    def resume(self, position: DataPosition) -> None:
        super().resume(position)
        if "own_seed" in position.source:  # not if another backend drew it
            self._own_seed = position.source["own_seed"]
            self._orders_made = position.source.get("orders_made", 0)

    def before_iterator(self) -> None:
        """Set the order and start of the iterator that is about to be created."""
        start = self._take_start()
        self._start_at.assign(start.drawn)
        if not self.shuffled:
            return
        self._order = start.source.get("order") or self._new_order()
        self._indices.assign(self._permutation(self._order))

    def _new_order(self) -> JSON:
        order = self._next_order()
        if order is not None:
            return {"keras": order}
        self._orders_made += 1
        return {"own_seed": [self._own_seed, self._orders_made]}

    def _permutation(self, order: JSON) -> np.ndarray:
        if "own_seed" in order:
            generator = np.random.default_rng(order["own_seed"])
            if self.shuffled != "batch":
                return generator.permutation(self.samples)
            n, size = self.samples, self.batch_size
            parts = [
                generator.permutation(min(size, n - i)) + i for i in range(0, n, size)
            ]
            return np.concatenate(parts)
        drawn_from = order["keras"]
        if self._keras_order is None or self._keras_order[0] != drawn_from:
            self._keras_order = drawn_from, self._drawn_by_keras(drawn_from)
        return self._keras_order[1]

    def _drawn_by_keras(self, drawn_from: int) -> np.ndarray:
        """The order of Keras's own pipeline."""
        plain = keras_internals.ArrayDataAdapter(
            np.arange(self.samples),
            batch_size=self.batch_size,
            shuffle=self.shuffled,
        )
        again = keras_internals.generation.drawing_again
        with again(plain, drawn_from, self._from_random_state):
            return np.concatenate([np.asarray(b) for b in plain.get_tf_dataset()])

    def get_tf_dataset(self) -> Any:
        """Keras's pipeline, with the indices from our variables."""
        inputs = keras.tree.lists_to_tuples(
            keras_internals.convert_to_sliceable(
                self._inputs, target_backend="tensorflow"
            )
        )
        # flat_map: the variables are read when an iterator yields its first element.
        indices = tf.data.Dataset.range(1).flat_map(self._batch_indices)
        whole = tf.data.Dataset.from_tensors(inputs).repeat()
        dataset = tf.data.Dataset.zip((indices, whole))
        dataset = dataset.map(_take_rows, num_parallel_calls=tf.data.AUTOTUNE)
        options = tf.data.Options()  # the options of Keras's pipeline
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_external_state_policy = (
            tf.data.experimental.ExternalStatePolicy.IGNORE
        )
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)

    # Converting it takes longer than all else.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _batch_indices(self, _: Any) -> Any:
        """The rows of every batch from the start, sliced fast, as in Keras."""
        n, size = self.samples, self.batch_size
        order = (
            self._indices.read_value() if self.shuffled else tf.range(n, dtype="int64")
        )
        start, full = self._start_at.read_value(), n // size
        rows = tf.reshape(order[: full * size], [full, size])
        batches = tf.data.Dataset.from_tensor_slices(rows[start:])
        if n % size:
            last = tf.data.Dataset.from_tensors(order[full * size :])
            batches = batches.concatenate(last.skip(tf.maximum(start - full, 0)))
        return batches


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _take_rows(indices: Any, data: Any) -> Any:
    def take(x: Any) -> Any:
        if isinstance(x, keras_internals.TensorflowSparseWrapper):
            return keras_internals.slice_tensorflow_sparse_wrapper(x, indices)
        if isinstance(x, (list, tuple, dict)):
            return None  # traverse descends into it
        return tf.gather(x, indices, axis=0) if tf.is_tensor(x) else x

    return keras.tree.traverse(take, data)
