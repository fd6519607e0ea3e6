"""torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, on every backend.

How each returns to a position:

* without workers: the indices are drawn again and skipped, no data is loaded;
* iterable datasets without workers: by their ``state_dict``, or replayed;
* with workers: replayed, with the same worker seeds;
* ``StatefulDataLoader`` with workers: by its ``state_dict``.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch

from resilient import keras_internals
from resilient.data.source import SourceContext, TrackedIterable
from resilient.data.torch_loader.positioned import PositionedLoader
from resilient.data.torch_loader.replayed import Replayed, has_torch_iterators
from resilient.data.torch_loader.stateful import IterableState, Torchdata, can_tell
from resilient.data.tracked_adapter import TrackedAdapter
from resilient.objects import kinds


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

    def __init__(self, source: Replayed, loader: Any) -> None:
        super().__init__(source)
        self.sampler = getattr(loader, "sampler", None)
        self.prefetch_factor = getattr(loader, "prefetch_factor", None)


def _as_array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.cpu())  # as Keras does


def _source(loader: Any, settings: SourceContext) -> Replayed:
    if settings.options.replay or not has_torch_iterators(loader):
        return Replayed(loader, settings)
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not loader.num_workers and not iterable:
        return PositionedLoader(loader, settings)
    names = {cls.__name__ for cls in type(loader).__mro__}
    if "StatefulDataLoader" in names and can_tell(loader):
        return Torchdata(loader, settings)
    stateful = kinds.has_state_dict(type(loader.dataset))
    if iterable and stateful and not loader.num_workers:
        return IterableState(loader, settings)
    return Replayed(loader, settings)
