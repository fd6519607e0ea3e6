"""torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, on every backend.

How each returns to a position:

* without workers: the indices are drawn again and skipped, no data is loaded;
* with workers, or over an iterable dataset: replayed, with the same worker seeds;
* ``StatefulDataLoader`` then: by its ``state_dict``.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch

from resilient import keras_internals
from resilient.data.source import SourceContext
from resilient.data.torch_loader.source import LoaderSource, has_torch_iterators
from resilient.data.torch_loader.without_replay import (
    IndexedLoader,
    StatefulLoader,
    has_exact_state,
)
from resilient.data.tracked import TrackedAdapter, TrackedIterable


class TorchLoaderData(
    TrackedAdapter,
    keras_internals.TorchDataLoaderAdapter,  # type: ignore[misc]
):
    """Keras's adapter for DataLoaders, with a position."""

    sure_length = None  # samplers and iterable datasets may have a wrong one

    def __init__(self, dataloader: Any, *, settings: SourceContext) -> None:
        super().__init__(dataloader)
        loader: Any = self._dataloader  # type: ignore[has-type]
        self._source = _source(loader, settings)
        self.tracked = _TrackedLoader(self._source, loader)
        self._dataloader = self.tracked

    def get_numpy_iterator(self) -> Iterator[Any]:
        # Keras's adapter makes a tuple of each batch: for a dict, a tuple of its keys.
        for batch in self._dataloader:
            arrays = keras.tree.map_structure(_as_array, batch, none_is_leaf=False)
            yield arrays if isinstance(batch, dict) else tuple(arrays)

    def get_tf_dataset(self) -> Any:
        signature: Any = self._output_signature  # type: ignore[has-type]
        if signature is None:
            count = keras_internals.NUM_BATCHES_FOR_TENSOR_SPEC
            batches = list(itertools.islice(self._dataloader, count))
            spec = keras_internals.get_tensor_spec(batches)
            self._output_signature = spec if isinstance(spec, dict) else tuple(spec)
        return super().get_tf_dataset()

    def on_epoch_begin(self) -> None:
        super().on_epoch_begin()
        self._source.in_epoch = True

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self._source.in_epoch = False


class _TrackedLoader(TrackedIterable):
    """An iterable with the attributes of a loader that Keras uses.

    Attributes:
        sampler: Keras 3.16 sets its epoch.
        prefetch_factor: If set, JAX's trainer before Keras 3.14 does not prefetch.
    """

    def __init__(self, source: LoaderSource, loader: Any) -> None:
        super().__init__(source)
        self.sampler = getattr(loader, "sampler", None)
        self.prefetch_factor = getattr(loader, "prefetch_factor", None)


def _as_array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.cpu())  # as Keras does


def _source(loader: Any, settings: SourceContext) -> LoaderSource:
    if settings.options.replay or not has_torch_iterators(loader):
        return LoaderSource(loader, settings)
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not loader.num_workers and not iterable:
        return IndexedLoader(loader, settings)
    found = StatefulLoader if has_exact_state(loader) else LoaderSource
    return found(loader, settings)
