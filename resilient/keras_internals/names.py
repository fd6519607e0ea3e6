"""The names that every supported Keras shares, and helpers around them.

Importing this module imports Keras and its backend.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, ModuleType
from typing import Any

import keras
import numpy as np

from resilient.errors import BackendNotAvailableError, message
from resilient.keras_internals.unknown import unknown_keras
from resilient.once import once

try:
    from keras.src.backend.common import global_state
    from keras.src.backend.common.masking import get_keras_mask
    from keras.src.random import seed_generator
    from keras.src.saving import serialization_lib
    from keras.src.trainers.data_adapters import (
        ArrayDataAdapter,
        GeneratorDataAdapter,
        GrainDatasetAdapter,
        PyDatasetAdapter,
        TFDatasetAdapter,
        TorchDataLoaderAdapter,
        get_data_adapter,
    )
    from keras.src.trainers.data_adapters.array_slicing import (
        TensorflowSparseWrapper,
        convert_to_sliceable,
        slice_tensorflow_sparse_wrapper,
    )
    from keras.src.trainers.data_adapters.py_dataset_adapter import (
        _SHARED_SEQUENCES as SHARED_DATASETS,
    )
    from keras.src.trainers.data_adapters.py_dataset_adapter import (
        OrderedEnqueuer,
        get_index,
    )
except ImportError as error:
    raise unknown_keras(str(error)) from error

__all__ = [
    "BACKEND",
    "EPOCH_ITERATOR",
    "EPOCH_LOGS",
    "GLOBAL_SEED_GENERATOR",
    "LOCALS",
    "SHARED_DATASETS",
    "ArrayDataAdapter",
    "EpochIterator",
    "GeneratorDataAdapter",
    "GrainDatasetAdapter",
    "OrderedEnqueuer",
    "PyDatasetAdapter",
    "TFDatasetAdapter",
    "TensorflowSparseWrapper",
    "TorchDataLoaderAdapter",
    "arguments_of_compile",
    "backend_epoch_iterator",
    "backend_variables",
    "choose_data_adapter",
    "convert_to_sliceable",
    "data_kind",
    "get_data_adapter",
    "get_index",
    "get_keras_mask",
    "global_seed_generator_state",
    "is_trainer",
    "looks_ahead",
    "require_model",
    "seed_generator",
    "set_global_seed_generator_state",
    "slice_tensorflow_sparse_wrapper",
    "trainer_module",
]

BACKEND: str = keras.backend.backend()

_EPOCH_ITERATORS = {
    "tensorflow": "TFEpochIterator",
    "jax": "JAXEpochIterator",
    "torch": "TorchEpochIterator",
}
if BACKEND not in _EPOCH_ITERATORS:
    raise BackendNotAvailableError(
        "keras-resilient works with the tensorflow, jax and torch backends.",
        received=f"KERAS_BACKEND={BACKEND}",
        hint="Set KERAS_BACKEND to one of them before Keras is imported.",
    )

EPOCH_ITERATOR = _EPOCH_ITERATORS[BACKEND]
# What `fit` calls once the loop over an epoch's batches is over, and `evaluate`, too.
EPOCH_LOGS = "_get_metrics_result_or_logs"
try:
    trainer_module: ModuleType = importlib.import_module(
        f"keras.src.backend.{BACKEND}.trainer"
    )
    # What all backends' are: Keras's own, before any hook puts another in its place.
    EpochIterator: Any = getattr(trainer_module, EPOCH_ITERATOR).__base__
except (ImportError, AttributeError) as error:
    raise unknown_keras(str(error)) from error

# Where Keras keeps its global seed generator; in Keras 3.12 the constant has no name.
GLOBAL_SEED_GENERATOR = "global_seed_generator"

# Local variables of `fit` that the hook reads from its frame.
LOCALS = (
    "self",
    "callbacks",
    "class_weight",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_data",
    "validation_freq",
    "validation_steps",
    "verbose",
)


def backend_epoch_iterator() -> Any:
    """The epoch iterator class that the backend's ``fit`` builds its input with."""
    return getattr(trainer_module, EPOCH_ITERATOR)


def choose_data_adapter(ours: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Let Keras choose the adapter for data, among ours.

    Its function runs unchanged, with its checks of the arguments; only the names of its
    adapters refer to ours.

    Args:
        ours: Name of Keras's adapter class -> factory of ours.
        arguments: Keyword arguments of Keras's epoch iterator.
    """
    choose = get_data_adapter
    names = inspect.signature(choose).parameters
    ours_instead = FunctionType(
        choose.__code__,
        {**choose.__globals__, **ours},
        choose.__name__,
        choose.__defaults__,
        choose.__closure__,
    )
    return ours_instead(**{k: v for k, v in arguments.items() if k in names})


_ADAPTERS = (
    *("ArrayDataAdapter", "GeneratorDataAdapter", "GrainDatasetAdapter"),
    *("PyDatasetAdapter", "TFDatasetAdapter", "TorchDataLoaderAdapter"),
)


def data_kind(x: Any, y: Any = None, sample_weight: Any = None) -> str | None:
    """The name of Keras's adapter class for data, if it has one.

    ``"DataAdapter"`` for an adapter that Keras would use unchanged.
    """
    names = {name: (lambda *_, name=name, **__: name) for name in _ADAPTERS}
    given = {"x": x, "y": y, "sample_weight": sample_weight}
    try:
        chosen = choose_data_adapter(names, given)
    except ValueError:  # Keras's own, about what it does not know
        return None
    return chosen if isinstance(chosen, str) else "DataAdapter"


@once
def is_trainer(cls: type) -> bool:
    """Whether it is a class of models, or of layers with the trainer of models."""
    # The trainer's class has no public name, and another one in Keras 3.16.
    return issubclass(cls, keras.layers.Layer) and hasattr(cls, "train_step")


def require_model(model: Any) -> None:
    """Raise TypeError unless it is a Keras model."""
    if not is_trainer(type(model)):
        bases = [f"{x.__module__}.{x.__qualname__}" for x in type(model).__mro__[:-1]]
        raise TypeError(
            message(
                "resilient.fit trains a keras.Model, of Keras 3.",
                received=", a subclass of ".join(bases[:3]),
                hint="Pass a model first, built with `import keras` and without "
                "TF_USE_LEGACY_KERAS (Keras uses the "
                f"{BACKEND} backend).",
            )
        )


_NOTHING: Mapping[str, Any] = {}


def arguments_of_compile(model: Any) -> Mapping[str, Any]:
    """The arguments of ``model.compile``, unchanged.

    The public ``get_compile_config`` serialises them, and imports TensorFlow.
    """
    found = getattr(model, "_compile_config", None)  # none before compile
    return _NOTHING if found is None else found.config


def looks_ahead() -> bool:
    """Whether Keras draws batches from Python iterators before it trains them.

    On TensorFlow ``tf.data`` prefetches; on JAX the next batch is sent to an
    accelerator while this one is trained.
    """
    if BACKEND == "jax":
        import jax

        return bool(jax.default_backend() != "cpu")
    return BACKEND == "tensorflow"


def backend_variables() -> tuple[type, ...]:
    """The class of raw ``tf.Variable``, which Keras does not track."""
    if BACKEND != "tensorflow":
        return ()
    import tensorflow as tf

    return (tf.Variable,)


def global_seed_generator_state() -> list[int] | None:
    """State of Keras's global seed generator, or None if it was not made yet."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    if generator is None:
        return None
    # Not `convert_to_numpy`, which numpy 2.4 warns about on TensorFlow and torch.
    value = generator.state.value
    first, second = (value if hasattr(value, "tolist") else value.numpy()).tolist()
    return [int(first), int(second)]


def set_global_seed_generator_state(
    state: list[int] | None, assign: Callable[[Any, Any], None]
) -> None:
    """Set (or, with None, forget) the state of Keras's global seed generator.

    Args:
        state: What ``global_seed_generator_state`` returned.
        assign: Sets a variable. (The method of one that a ``keras.distribution``
            spreads over processes waits for all of them.)
    """
    if state is None:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
    else:
        live = seed_generator.global_seed_generator().state
        assign(live, np.array(state, "int64").astype(live.dtype))


def call_in_order(callbacks: Any) -> None:
    """Give a ``CallbackList`` a single thread, before training begins.

    On JAX and torch, Keras calls callbacks at the end of each batch in a thread pool,
    for several batches at once: a progress bar may go back, and the result of an
    ``async_safe`` callback depends on chance. A single thread calls them in order, and
    no later.
    """
    if callbacks._executor is None:  # an existing one is already running
        callbacks._executor = ThreadPoolExecutor(max_workers=1)


def wait_for_calls(callbacks: Any) -> None:
    """Wait for all calls of a ``CallbackList``.

    Raises:
        Exception: Whatever a callback raised meanwhile.
    """
    callbacks._flush_futures()


class _WhereImported:
    """Stands for TensorFlow inside Keras's serialization."""

    def __init__(self, tensorflow: Any) -> None:
        self.tensorflow = tensorflow

    @property
    def available(self) -> bool:
        return "tensorflow" in sys.modules and bool(self.tensorflow.available)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensorflow, name)


def without_importing_tensorflow() -> None:
    """Keep configs from importing TensorFlow while another backend trains.

    Keras checks whether each object in a config is TensorFlow's, and imports TensorFlow
    to do so, which costs seconds, hundreds of megabytes and a GPU's memory. But a
    library that was never imported has created no objects. So until
    ``as_before``, TensorFlow is available there only if it is already imported;
    results are the same, in every thread.
    """
    serialization_lib.tf = _WhereImported(serialization_lib.tf)


def as_before() -> None:
    """Make configs as Keras does."""
    serialization_lib.tf = serialization_lib.tf.tensorflow
