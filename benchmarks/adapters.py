"""What gives batches to a backend's trainer: Keras's adapters of data, and ours."""

from collections.abc import Iterator
from typing import Any

import keras

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.data.select import adapter_for
from resilient.data.source import SourceContext


def ours(name: str, data: Any, size: int, saved: Any = None) -> Any:
    """Ours of a source; `saved` is where it is to go on."""
    backend = keras.backend.backend()
    settings = SourceContext(
        get_backend(), verbose=False, ahead=backend == "tensorflow", saved=saved
    )
    return adapter_for(arguments(name, data, size), settings)


def of_keras(name: str, data: Any, size: int) -> Any:
    """Keras's own of a source."""
    return keras_internals.choose_data_adapter({}, arguments(name, data, size))


def batches(adapter: Any) -> Iterator[Any]:
    """An iterator over the batches of an adapter, as this backend's fit makes it."""
    get = {
        "tensorflow": "get_tf_dataset",
        "jax": "get_jax_iterator",
        "torch": "get_torch_dataloader",
    }[keras.backend.backend()]
    if not hasattr(adapter, "before_iterator"):
        return iter(getattr(adapter, get)())
    adapter.before_iterator()
    return iter(adapter.wrap(getattr(adapter, get)()))


def arguments(name: str, data: Any, size: int) -> dict[str, Any]:
    """Those of a fit that are about the data."""
    if name == "arrays":
        return {"x": data[0], "y": data[1], "batch_size": size, "shuffle": True}
    return {"x": data, "shuffle": name == "PyDataset"}
