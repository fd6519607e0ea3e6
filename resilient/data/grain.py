"""Grain datasets and loaders: saves the state of their iterators.

We save the state before the last batch: a resumed iterator starts there and draws that
batch again, to verify it. If an iterator has no state that can be saved, or with
``replay_data=True``, all batches are drawn again.
"""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import grain
import keras

from resilient import keras_internals
from resilient.data.source import DataSource, SourceContext, skip
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.serialization import JSON
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import parse

_KIND = "grain"


class GrainData(TrackedAdapter, keras_internals.GrainDatasetAdapter):  # type: ignore[misc]
    """A Grain MapDataset, IterDataset or DataLoader as input."""

    def __init__(self, dataset: Any, *, settings: SourceContext) -> None:
        super().__init__(dataset)
        self._source = GrainSource(dataset, settings, self.batch_size)
        self.tracked = TrackedIterable(self._source)

    def resume(self, position: DataPosition) -> None:
        if keras_internals.BACKEND == "jax" and not self._source.settings.as_given:
            self.get_jax_iterator()  # maps the dataset the way it is iterated
        super().resume(position)

    def get_jax_iterator(self, super_batch: int | None = None) -> Any:
        self._source.dataset = super().get_jax_iterator()
        return keras_internals.generation.in_steps(self.tracked, super_batch)

    def get_numpy_iterator(self) -> Any:
        mapped = super().get_numpy_iterator()
        if keras_internals.BACKEND != "torch":  # JAX's iterator is built on it
            return mapped
        self._source.dataset = mapped
        return self.tracked

    def get_torch_dataloader(self) -> Any:
        loader = super().get_torch_dataloader()
        loader.dataset.iterable = self.tracked
        return loader

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        # Keras also converts sparse and missing arrays, in a function we cannot reach.
        spec = super().get_tf_dataset().element_spec
        return tf.data.Dataset.from_generator(
            lambda: map(keras.tree.lists_to_tuples, self.tracked), output_signature=spec
        )


class GrainSource(DataSource):
    """A Grain dataset and its newest iterator.

    Args:
        dataset: What is iterated, after Keras has mapped it.
    """

    def __init__(self, dataset: Any, settings: SourceContext, batch_size: int) -> None:
        self.dataset = dataset
        self.settings = settings
        self._batches: _Batches | None = None
        kinds = (grain.MapDataset, grain.IterDataset, grain.DataLoader)
        kind = next(k.__name__ for k in kinds if isinstance(dataset, k))
        self.name = f"a Grain {kind}"
        self._fingerprint: JSON = {"kind": _KIND, "class": kind, "batch": batch_size}
        if kind == "MapDataset":
            self._fingerprint["batches"] = len(dataset)

    def begin(self) -> Iterator[Any]:
        self._batches = _Batches(iter(self.dataset))
        return self._batches

    def position(self, *, live: bool) -> JSON:
        found: JSON = {"kind": _KIND}
        if live and self._batches is not None and not self.settings.options.replay:
            found |= self._batches.states()
        return found

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        batches = self._batches = _Batches(iter(self.dataset))
        if not given:
            return batches, None
        if self.settings.options.replay or "before" not in position:
            return batches, skip(batches, given, self)
        with self.restoring():  # Grain validates little
            return batches, batches.after(position["before"])

    def fingerprint(self) -> JSON:
        return self._fingerprint


class _Batches(Iterator[Any]):
    """A Grain iterator, and its state before the last batch."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._before: Any = None
        self._has_state = True

    def __next__(self) -> Any:
        before = self._state()
        batch = next(self._batches)
        self._before = before
        return batch

    def states(self) -> JSON:
        """The state before the last batch, if it can be saved."""
        try:
            encode(self._before, {}, "state")
        except NotEncodable:
            return {}
        return {} if self._before is None else {"before": self._before}

    def after(self, state: Any) -> Any:
        """The batch after this state."""
        self._batches.set_state(_of_this_process(state, self._state()))
        return next(self)

    def _state(self) -> Any:
        """A copy of the iterator's state; None if it has none."""
        if not self._has_state:
            return None
        try:
            return copy.deepcopy(self._batches.get_state())
        except (AttributeError, NotImplementedError):
            self._has_state = False
            return None


def _of_this_process(saved: Any, fresh: Any) -> Any:
    """The state of a DataLoader, without addresses of objects.

    Grain refuses a state if the ``repr`` of sampler or data source differs, and the
    default ``repr`` differs in each process.
    """
    if not isinstance(saved, bytes) or not isinstance(fresh, bytes):
        return saved
    old, new = parse(saved), parse(fresh)
    for key in ("sampler", "data_source"):
        if _without_addresses(old.get(key)) == _without_addresses(new.get(key)):
            old[key] = new.get(key)
    return json.dumps(old).encode()


def _without_addresses(text: Any) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(text))
