"""Selects the data adapter that replaces Keras's own.

Keras itself chooses, and rejects arguments that do not go together; it finds our
adapters under the names of its own. Each module is imported when needed.
"""

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import keras

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.shard import ShardedData
from resilient.data.source import SourceContext
from resilient.errors import DataNotResumableError, warn_not_exact
from resilient.objects.adapters.base import Kind
from resilient.serialization import JSON
from resilient.serialization.state_dict import Stateful
from resilient.state.comparison import data_differences

# Keras's adapter -> the module and the name of ours.
_OURS = {
    "PyDatasetAdapter": ("py_dataset.adapter", "PyDatasetData"),
    "TorchDataLoaderAdapter": ("torch_loader.adapter", "TorchLoaderData"),
    "GrainDatasetAdapter": ("grain", "GrainData"),
    "GeneratorDataAdapter": ("generator", "GeneratorData"),
}
# Data whose adapters Keras can create without drawing from it.
_EARLY = ("PyDatasetAdapter", "TFDatasetAdapter", "TorchDataLoaderAdapter")
# Only TensorFlow uses tf.data's own iterators; other backends iterate from Python.
_TF_DATA = {
    "tensorflow": ("tf_data.adapter", "TFData"),
    "jax": ("tf_data.adapter", "TFDataInPython"),
    "torch": ("tf_data.adapter", "TFDataInPython"),
}
_ARRAYS = {
    "tensorflow": ("arrays.tensorflow", "TensorFlowArrays"),
    "jax": ("arrays.sliced", "JaxArrays"),
    "torch": ("arrays.torch", "TorchArrays"),
}


def adapter_for(arguments: Mapping[str, Any], settings: SourceContext) -> Positioned:
    """The adapter for the data that ``fit`` was given.

    Raises:
        DataNotResumableError: This kind of data cannot return to a position.
        ValueError: From Keras, for arguments that do not go together.
    """
    x = arguments["x"]
    if _is_new_to_keras(arguments):
        # Keras checks the other arguments as it does for a generator.
        make = partial(_class("iterable", "IterableData"), settings=settings)
        new: Positioned = keras_internals.choose_data_adapter(
            {"GeneratorDataAdapter": lambda _: make(x)},
            {**arguments, "x": _no_batches(), "shuffle": False},
        )
        return new
    require_known(x, settings.argument)
    known = {**_OURS, "TFDatasetAdapter": _TF_DATA[keras_internals.BACKEND]}
    ours = {name: _made(*place, settings) for name, place in known.items()}
    ours["ArrayDataAdapter"] = _arrays(settings.share)
    steps = _steps_per_epoch(arguments.get("steps_per_epoch"))
    adapter: Positioned = keras_internals.choose_data_adapter(
        ours, {**arguments, "steps_per_epoch": steps}
    )
    return adapter


def are_arrays(arguments: Mapping[str, Any]) -> bool:
    """Whether all of x, y and sample_weight are arrays, or structures of arrays."""
    values = [arguments.get(name) for name in ("x", "y", "sample_weight")]
    return keras_internals.data_kind(*values) == "ArrayDataAdapter"


def _is_new_to_keras(arguments: Mapping[str, Any]) -> bool:
    """Whether x is an iterable with the two methods, and of no kind known to Keras."""
    x = arguments["x"]
    return (
        isinstance(x, Stateful)
        and hasattr(x, "__iter__")
        and keras_internals.data_kind(x) is None
        and not are_arrays(arguments)
    )


def _no_batches() -> Iterator[Any]:
    yield from ()


def _steps_per_epoch(steps: int | None) -> int | None:
    """Keras's own limit, which it applies before it creates its adapter."""
    cap = getattr(keras.config, "max_steps_per_epoch", lambda: None)()
    return cap if cap and (not steps or cap < steps) else steps


def _arrays(share: ShardedData) -> Callable[..., Any]:
    """Creates the adapter for arrays, which yields this process's share."""
    backend, parallel = keras_internals.BACKEND, share.parallel
    if (
        not parallel.divides_arrays or backend != "torch"
    ):  # TensorFlow splits them itself
        return partial(_class(*_ARRAYS[backend]), share=share)
    order = partial(share.group.broadcast, "order")
    ranks = _class("arrays.torch", "RankArrays")
    return partial(ranks, rank=parallel.index, world=parallel.count, share=order)


def _made(module: str, name: str, settings: SourceContext) -> Callable[..., Any]:
    """Imports an adapter's module, and creates the adapter."""
    return lambda *args, **kw: _class(module, name)(*args, settings=settings, **kw)


def _class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"resilient.data.{module}"), name)


def kind_of_iterator(name: str, value: Any) -> Kind | None:
    """How to save a loop's own iterator; None if it is not from tf.data."""
    if "tensorflow" not in sys.modules:
        return None
    from resilient.data.tf_data.iterator_object import kind_of

    return kind_of(name, value)


def require_known(value: Any, argument: str) -> None:
    """Raise DataNotResumableError for a custom data adapter.

    Keras would accept it as it is, and refuses what is not data at all.
    """
    if keras_internals.data_kind(value) == "DataAdapter":
        raise _unknown(value, argument)


def require_data(arguments: Mapping[str, Any], argument: str) -> None:
    """Raise DataNotResumableError for unsupported types, before Keras complains."""
    x = arguments["x"]
    kind = keras_internals.data_kind(x)
    known = kind not in (None, "DataAdapter", "ArrayDataAdapter")
    if not (known or _is_new_to_keras(arguments) or are_arrays(arguments)):
        raise _unknown(x, argument)


def _unknown(value: Any, argument: str) -> DataNotResumableError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return DataNotResumableError(
        f"`{argument}` cannot be resumed: data of this type has no position to return "
        "to.",
        received=kind,
        hint="Pass arrays, a tf.data.Dataset, a keras.utils.PyDataset, a torch "
        "DataLoader, a Grain dataset, a generator, or any iterable with "
        "state_dict() and load_state_dict().",
    )


def ahead_of_training(data: Any, settings: SourceContext) -> Positioned | None:
    """The adapter for validation data, if it can be created without drawing from it.

    Keras creates it in the first evaluation. Created before training begins, it sees
    everything that happens to the data, and is restored together with the training
    data.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    arguments = {
        "x": x,
        "y": y,
        "sample_weight": sample_weight,
        "class_weight": None,
        "batch_size": None,
        "steps_per_epoch": None,
        "shuffle": False,
    }
    kind = keras_internals.data_kind(x)
    if kind in _EARLY or _is_new_to_keras(arguments):
        return adapter_for(arguments, settings)
    generator = isinstance(x, types.GeneratorType) and settings.strategy is not None
    if generator and _class("tf_data.adapter", "distributes")(settings.strategy):
        raise DataNotResumableError(
            "A Python generator as validation data under a strategy does not yield "
            "the same batches again: in each evaluation TensorFlow prefetches batches "
            "from it and drops them, and how many depends on timing.",
            received="`validation_data` is a Python generator",
            hint="Pass arrays, a tf.data.Dataset or a keras.utils.PyDataset.",
        )
    return None


def is_same(adapter: Positioned, before: JSON) -> bool:
    """Whether validation data is the same as before; warns if not.

    Args:
        adapter: For that data.
        before: The fingerprint in the checkpoint.
    """
    theirs, ours = (
        {f"data {name}": value for name, value in each.items()}
        for each in (before, adapter.fingerprint())
    )
    found = [each.line for each in data_differences(theirs, ours)]
    if found:
        warn_not_exact(
            "the validation data changed since the checkpoint, so it starts from its "
            "beginning",
            found,
        )
    return not found
