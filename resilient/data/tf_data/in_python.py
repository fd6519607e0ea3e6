"""tf.data pipelines where Keras iterates them from Python: on JAX and PyTorch."""

import itertools
from collections.abc import Iterator
from typing import Any

from resilient import keras_internals
from resilient.data.source import DataSource, SourceContext, TrackedIterable
from resilient.data.tf_data import facts
from resilient.data.tf_data.pipeline import Pipeline
from resilient.data.tracked_adapter import TrackedAdapter
from resilient.serialization import JSON
from resilient.serialization.batches import checksum


class TFDataInPython(TrackedAdapter, keras_internals.TFDatasetAdapter):  # type: ignore[misc]
    """Input of the JAX and PyTorch trainers."""

    _dataset: Any

    def __init__(self, *args: Any, settings: SourceContext, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pipeline = Pipeline(self._dataset, settings)
        if kwargs.get("distribution") is not None:
            # Whatever part of it this process is given, it is this dataset.
            whole: Any = keras_internals.TFDatasetAdapter(
                *args, **{**kwargs, "distribution": None}
            )._dataset
            pipeline.fingerprint = facts.fingerprint(whole, facts.graph_of(whole))
        source = _Source(pipeline)
        self.tracked = TrackedIterable(source, settings)
        self._dataset = _Followed(self.tracked, self._dataset)

    def get_jax_iterator(self, super_batch: int | None = None) -> Any:
        one_by_one = super().get_jax_iterator()
        return keras_internals.generation.in_steps(one_by_one, super_batch)


class _Source(DataSource):
    """The batches of a pipeline."""

    name = Pipeline.name

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._iterator: Any = None

    def begin(self) -> Iterator[Any]:
        self._pipeline.check(lambda iterator: next(iterator, None))
        self._iterator = self._pipeline.begin()
        if not self._pipeline.remembers:
            return self._iterator  # type: ignore[no-any-return]
        return self._noting_first()

    def _noting_first(self) -> Iterator[Any]:
        for batch in itertools.islice(self._iterator, 1):
            self._pipeline.began(checksum(batch))
            yield batch
        yield from self._iterator

    def position(self, *, live: bool) -> JSON:
        return self._pipeline.position(self._iterator if live else None)

    def resume(self, position: JSON) -> None:
        self._pipeline.resume(position)

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        self._iterator, last = self._pipeline.seek(position, given)
        return self._iterator, last

    def fingerprint(self) -> JSON:
        return self._pipeline.fingerprint


class _Followed:
    """What Keras iterates and asks in place of the dataset."""

    def __init__(self, tracked: TrackedIterable, dataset: Any) -> None:
        self._tracked = tracked
        self.cardinality = dataset.cardinality
        self.element_spec = dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tracked)
