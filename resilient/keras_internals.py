"""The only importer of ``keras.src``: every private name we rely on, and why.

Keras's own ``fit`` runs, whole. What we need from inside it:

* the epoch iterator class of the backend's trainer module, which ``fit`` looks up by
  name when it builds its input: subclassed to get control between two batches and to
  start at batch k (its generator yields step numbers and never pulls data);
* the name ``callbacks_module`` in that module, through which ``fit`` reaches
  ``CallbackList``: replaced to get control around ``on_train_begin``,
  ``on_epoch_end`` and ``on_train_end`` without adding a callback (a callback with
  ``on_train_batch_end`` would turn off Keras's asynchronous dispatch);
* local variables of ``fit`` (``LOCALS``), read once, when it builds the iterator;
* attributes of model, iterator, callback list and array adapter named below.

Importing this module imports Keras and its backend. It refuses a Keras whose
structure is not the one it knows: a silent change there would be a silent error here.
"""

import importlib
import inspect
from types import CodeType, ModuleType
from typing import Any

import keras
import numpy as np

from resilient.errors import BackendNotAvailableError, NotSupportedError, describe


def _unknown_keras(changed: str) -> NotSupportedError:
    return NotSupportedError(
        describe(
            "This version of Keras is built in a way keras-resilient does not "
            "know, so an exact resume cannot be promised.",
            f"Keras {keras.__version__}: {changed}",
            "Use Keras 3.12 to 3.15, or a newer keras-resilient.",
        )
    )


try:
    from keras.src import tree
    from keras.src.backend.common import global_state
    from keras.src.callbacks.callback_list import CallbackList
    from keras.src.random import seed_generator
    from keras.src.trainers.data_adapters import array_slicing
    from keras.src.trainers.data_adapters.array_data_adapter import (
        ArrayDataAdapter,
        can_convert_arrays,
    )
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.epoch_iterator import EpochIterator
    from keras.src.trainers.trainer import Trainer
except ImportError as error:
    raise _unknown_keras(str(error)) from error

__all__ = [
    "BACKEND",
    "EPOCH_ITERATOR",
    "ArrayDataAdapter",
    "CallbackList",
    "DataAdapter",
    "EpochIterator",
    "Trainer",
    "array_slicing",
    "backend_epoch_iterator",
    "can_convert_arrays",
    "changes",
    "global_seed_generator_state",
    "is_backend_variable",
    "replica_components",
    "require_known_keras",
    "set_global_seed_generator_state",
    "traced_functions",
    "trainer_module",
    "tree",
]

BACKEND: str = keras.backend.backend()

_EPOCH_ITERATORS = {
    "tensorflow": "TFEpochIterator",
    "jax": "JAXEpochIterator",
    "torch": "TorchEpochIterator",
}
if BACKEND not in _EPOCH_ITERATORS:
    raise BackendNotAvailableError(
        describe(
            "keras-resilient works with the tensorflow, jax and torch backends.",
            f"KERAS_BACKEND={BACKEND}",
            "Set KERAS_BACKEND to one of them before Keras is imported.",
        )
    )

EPOCH_ITERATOR = _EPOCH_ITERATORS[BACKEND]
trainer_module: ModuleType = importlib.import_module(
    f"keras.src.backend.{BACKEND}.trainer"
)

# Where Keras keeps its global seed generator; in Keras 3.12 the constant has no name.
_GLOBAL_SEED_GENERATOR = "global_seed_generator"

# Local variables of `fit` that the hook reads from its frame.
LOCALS = (
    "self",
    "callbacks",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_data",
    "verbose",
)


def backend_epoch_iterator() -> Any:
    """The epoch iterator class that the backend's ``fit`` builds its input with."""
    return getattr(trainer_module, EPOCH_ITERATOR)


def is_backend_variable(value: Any) -> bool:
    """Whether ``value`` is a raw ``tf.Variable``, which Keras does not track."""
    if BACKEND != "tensorflow":
        return False
    import tensorflow as tf

    return isinstance(value, tf.Variable)


def traced_functions(train_function: Any) -> list[Any]:
    """The concrete functions that TensorFlow traced for a Keras train function.

    Keras's function closes over a ``tf.function``; TensorFlow has no public way to
    list what that one traced.
    """
    cells = getattr(train_function, "__closure__", None) or ()
    return [
        traced
        for cell in cells
        if hasattr(cell.cell_contents, "_list_all_concrete_functions")
        for traced in cell.cell_contents._list_all_concrete_functions()
    ]


def replica_components(variable: Any) -> list[Any]:
    """The ``tf.Variable`` of each replica, under a strategy with several of them."""
    if BACKEND != "tensorflow":
        return []
    import tensorflow as tf

    value = getattr(variable, "_value", variable)
    if not isinstance(value, tf.distribute.DistributedValues):
        return []
    return list(value.values) if len(value.values) > 1 else []


def global_seed_generator_state() -> np.ndarray | None:
    """State of Keras's global seed generator, or None where none was made yet."""
    generator = global_state.get_global_attribute(_GLOBAL_SEED_GENERATOR)
    if generator is None:
        return None
    state = generator.state
    # Not `convert_to_numpy`, which numpy 2.4 warns about on TensorFlow and torch.
    return np.array([int(state[0]), int(state[1])], dtype=state.dtype)


def set_global_seed_generator_state(state: np.ndarray | None) -> None:
    """Set (or, with None, forget) the state of Keras's global seed generator."""
    if state is None:
        global_state.set_global_attribute(_GLOBAL_SEED_GENERATOR, None)
        return
    seed_generator.global_seed_generator().state.assign(state)


def _names(thing: Any) -> set[str]:
    """Every name that a function, or any of a class, mentions; nested code included."""
    if inspect.isclass(thing):
        functions = [f for _, f in inspect.getmembers(thing, inspect.isfunction)]
    else:
        functions = [thing]
    codes = [getattr(inspect.unwrap(f), "__code__", None) for f in functions]
    todo: list[CodeType] = [code for code in codes if code is not None]
    names: set[str] = set()
    while todo:
        code = todo.pop()
        names.update(code.co_names, code.co_varnames, code.co_cellvars)
        names.update(c for c in code.co_consts if isinstance(c, str))
        todo.extend(c for c in code.co_consts if isinstance(c, CodeType))
    return names


# Where the names below are looked up, so that one that is gone is named, too.
_OWNERS: dict[str, Any] = {
    "ArrayDataAdapter": ArrayDataAdapter,
    "CallbackList": CallbackList,
    "EpochIterator": EpochIterator,
    "LossScaleOptimizer": keras.optimizers.LossScaleOptimizer,
    "Model": keras.Model,
    "Optimizer": keras.optimizers.Optimizer,
    "TensorBoard": keras.callbacks.TensorBoard,
    "Variable": keras.Variable,
    EPOCH_ITERATOR: getattr(trainer_module, EPOCH_ITERATOR, object),
}

# What each must still mention, or what takes its place must be read anew.
_EXPECTED: dict[str, tuple[str, ...]] = {
    "Model.fit": (
        *LOCALS,
        EPOCH_ITERATOR,
        *("callbacks_module", "_initial_epoch", "reset", "stop_training"),
        *("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"),
        "class_weight",
        *(("_jax_state", "_jax_state_synced") if BACKEND == "jax" else ()),
    ),
    "EpochIterator.__init__": (
        *("data_adapter", "_current_iterator", "_steps_seen", "_num_batches"),
        *("steps_per_epoch", "steps_per_execution"),
    ),
    "EpochIterator._enumerate_iterator": (
        *("_get_iterator", "_current_iterator", "_steps_seen", "_num_batches"),
    ),
    "EpochIterator.reset": ("_current_iterator",),
    EPOCH_ITERATOR: ("_distributed_dataset",) if BACKEND == "tensorflow" else (),
    "CallbackList.__init__": ("callbacks", "_async_train", "_futures"),
    "CallbackList._flush_futures": ("_futures",),
    "ArrayDataAdapter.__init__": (
        *("_num_samples", "_inputs", "_size", "_batch_size", "_shuffle"),
        "_partial_batch_size",
    ),
    "ArrayDataAdapter._get_iterator": ("permutation", "slice_and_convert_fn", "inputs"),
    "ArrayDataAdapter.get_torch_dataloader": (
        *("RandomSampler", "randperm", "batch_sampler"),
    ),
    "ArrayDataAdapter.get_tf_dataset": (
        "shuffle",
        "convert_to_sliceable",
        "grab_batch",
    ),
    "Model._symbolic_build": ("data_batch",),
    "Model._flatten_layers": (),
    "LossScaleOptimizer": ("inner_optimizer",),
    "Optimizer": ("_learning_rate",),
    "TensorBoard": (
        *("_epoch_start_time", "_global_train_batch", "_prev_summary_state"),
        *("_pop_writer", "_push_writer", "_train_dir", "_train_writer"),
        *("_val_dir", "_writers"),
    ),
    "Variable": ("_value",),
}


def changes() -> list[str]:
    """What is not as this module expects it in the installed Keras; empty if all is."""
    found = [
        f"keras.src.backend.{BACKEND}.trainer has no {name}"
        for name in (EPOCH_ITERATOR, "callbacks_module")
        if not hasattr(trainer_module, name)
    ]
    for label, expected in _EXPECTED.items():
        owner, _, name = label.partition(".")
        thing = getattr(_OWNERS[owner], name, None) if name else _OWNERS[owner]
        if thing is None:
            found.append(f"{owner} has no {name}")
            continue
        if label == "Model.fit" and (
            inspect.getmodule(inspect.unwrap(thing)) is not trainer_module
        ):
            found.append("Model.fit is not the backend trainer's (patched?)")
            continue
        missing = sorted(set(expected) - _names(thing))
        found.extend(f"{label} no longer mentions {gone}" for gone in missing)
    key = getattr(
        seed_generator, "GLOBAL_SEED_GENERATOR", _GLOBAL_SEED_GENERATOR
    )  # a constant of its own since Keras 3.13
    if key != _GLOBAL_SEED_GENERATOR or not (
        {key, "GLOBAL_SEED_GENERATOR"} & _names(seed_generator.global_seed_generator)
    ):
        found.append("the global seed generator is kept under another name")
    if not inspect.isgeneratorfunction(EpochIterator._enumerate_iterator):
        found.append("EpochIterator._enumerate_iterator is no generator")
    return found


def require_known_keras() -> None:
    """Raise where Keras is not built as this module expects it.

    Raises:
        NotSupportedError: Names the Keras version and what changed.
    """
    found = changes()
    if found:
        raise _unknown_keras("; ".join(found))
