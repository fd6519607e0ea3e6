"""Keras 3.16: adapters count epochs, and draw the order of data from that number."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keras.backend import backend
from keras.src.trainers.data_adapters.data_adapter_utils import super_batch_iterator

from resilient.keras_internals.keras_3_12 import Keras312


class Keras316(Keras312):
    """Where it differs from Keras 3.12."""

    expected: Mapping[str, tuple[str, ...]] = {
        "ArrayDataAdapter._get_iterator": ("_epoch",),
        "ArrayDataAdapter.get_numpy_iterator": ("_get_iterator",),
        "ArrayDataAdapter.get_torch_dataloader": ("_epoch",),
        "ArrayDataAdapter.get_tf_dataset": ("_tf_shuffle",),
        "ArrayDataAdapter.on_epoch_end": ("_epoch",),
        "PyDatasetAdapter.__init__": ("_num_data_shards", "_data_shard_id"),
        "PyDatasetAdapter._finite_generator": ("_epoch", "Random"),
        "PyDatasetAdapter.on_epoch_end": ("_epoch",),
        "OrderedEnqueuer._run": ("epoch", "Random"),
    }

    orders = "the number of the epoch"
    traces_shapes = True
    trains_on_ranks = True

    def order(self, adapter: Any, random_state: Callable[[], Any]) -> Any:
        # TensorFlow's pipeline is traced once, where the number is 0.
        return 0 if backend() == "tensorflow" else adapter._epoch

    @contextlib.contextmanager
    def drawing_again(
        self, adapter: Any, order: Any, from_random_state: Callable[[Any], Any]
    ) -> Iterator[None]:
        now = adapter._epoch
        adapter._epoch = order
        try:
            yield
        finally:
            adapter._epoch = now

    def shuffle(self, indices: list[int], adapter: Any) -> None:
        random.Random(adapter._epoch).shuffle(indices)

    def share(self, adapter: Any) -> slice:
        return slice(adapter._data_shard_id, None, adapter._num_data_shards)

    def epochs(self, adapter: Any) -> int:
        return getattr(adapter, "_epoch", 0)  # not every kind of data needs it

    def set_epochs(self, adapter: Any, epochs: int) -> None:
        if hasattr(adapter, "_epoch"):
            adapter._epoch = epochs

    def draws_in_step(self, steps_per_execution: int) -> int:
        return 1 if backend() == "jax" else steps_per_execution

    def in_steps(self, batches: Iterable[Any], steps: int | None) -> Iterable[Any]:
        return batches if steps is None else super_batch_iterator(iter(batches), steps)
