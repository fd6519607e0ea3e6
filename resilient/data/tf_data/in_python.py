"""tf.data pipelines where Keras iterates them from Python: on JAX and PyTorch."""

import itertools
from collections.abc import Iterator
from typing import Any

from resilient import keras_internals
from resilient.data.source import SourceContext, TrackedIterable
from resilient.data.tf_data import facts
from resilient.data.tf_data.pipeline import Pipeline
from resilient.data.tracked_adapter import TrackedAdapter
from resilient.serialization.batches import checksum


class TFDataInPython(TrackedAdapter, keras_internals.TFDatasetAdapter):  # type: ignore[misc]
    """Input of the JAX and PyTorch trainers."""

    _dataset: Any

    def __init__(self, *args: Any, settings: SourceContext, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pipeline = _Pipeline(self._dataset, settings)
        if kwargs.get("distribution") is not None:
            # It is this dataset, whichever part this process gets.
            whole: Any = keras_internals.TFDatasetAdapter(
                *args, **{**kwargs, "distribution": None}
            )._dataset
            pipeline.facts = facts.fingerprint(whole, facts.graph_of(whole))
        self.tracked = TrackedIterable(pipeline)
        self._dataset = _Followed(self.tracked, self._dataset)

    def get_jax_iterator(self, super_batch: int | None = None) -> Any:
        one_by_one = super().get_jax_iterator()
        return keras_internals.generation.in_steps(one_by_one, super_batch)


class _Pipeline(Pipeline):
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


class _Followed:
    """Stands in for the dataset in Keras."""

    def __init__(self, tracked: TrackedIterable, dataset: Any) -> None:
        self._tracked = tracked
        self.cardinality = dataset.cardinality
        self.element_spec = dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tracked)
