"""Lists every private name of Keras that we rely on, and where Keras has it.

The main list has only what this backend uses in every training; the rest is in separate
lists (``OF_...``), which are checked where they are used.
"""

from collections.abc import Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.keras_internals import (
    BACKEND,
    EPOCH_ITERATOR,
    EPOCH_LOGS,
    LOCALS,
    generation,
    trainer_module,
)

Labels = Mapping[str, tuple[str, ...]]

# The backend's, which `keras.Model` inherits `fit` from. If a library wrapped
# `Model.fit`, Keras's own runs inside, and is what is checked.
_TRAINER: Any = next(
    (c for c in keras.Model.__mro__ if c.__module__ == trainer_module.__name__), object
)

# Where the names below are looked up, so that missing ones can be named.
OWNERS: dict[str, Any] = {
    "ArrayDataAdapter": keras_internals.ArrayDataAdapter,
    "CallbackList": keras.callbacks.CallbackList,
    "EpochIterator": keras_internals.EpochIterator,
    "Function": keras.Function,
    "GeneratorDataAdapter": keras_internals.GeneratorDataAdapter,
    "GrainDatasetAdapter": keras_internals.GrainDatasetAdapter,
    "Model": keras.Model,
    "Optimizer": keras.optimizers.Optimizer,
    "OrderedEnqueuer": keras_internals.OrderedEnqueuer,
    "PyDatasetAdapter": keras_internals.PyDatasetAdapter,
    "TensorBoard": keras.callbacks.TensorBoard,
    "TFDatasetAdapter": keras_internals.TFDatasetAdapter,
    "TorchDataLoaderAdapter": keras_internals.TorchDataLoaderAdapter,
    "Trainer": _TRAINER,
    "Variable": keras.Variable,
    "get_data_adapter": keras_internals.get_data_adapter,
    "serialize_keras_object": keras.saving.serialize_keras_object,
    EPOCH_ITERATOR: getattr(trainer_module, EPOCH_ITERATOR, object),
}

# What each must still mention; otherwise its new code must be read.
_OF_ALL_GENERATIONS: dict[str, tuple[str, ...]] = {
    "Trainer.fit": (
        *LOCALS,
        EPOCH_ITERATOR,
        *("callbacks_module", "_initial_epoch", "reset", "stop_training"),
        *("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"),
        *(("_jax_state", "_jax_state_synced") if BACKEND == "jax" else ()),
    ),
    "Trainer.compile": ("_compile_config",),
    "EpochIterator.__init__": (
        *("data_adapter", "_current_iterator", "_steps_seen", "_num_batches"),
        *("steps_per_epoch", "steps_per_execution"),
    ),
    "EpochIterator._enumerate_iterator": (
        *("_get_iterator", "_current_iterator", "_steps_seen", "_num_batches"),
    ),
    "EpochIterator.reset": (),
    "CallbackList._flush_futures": (),
    "CallbackList._on_begin": ("_executor",),
    "ArrayDataAdapter.__init__": ("_inputs",),
    "ArrayDataAdapter._get_iterator": ("permutation",),
    "ArrayDataAdapter.get_torch_dataloader": ("randperm",),
    "ArrayDataAdapter.get_tf_dataset": ("shuffle",),
    "Function._run_through_graph": ("_nodes_by_depth",),
    "GeneratorDataAdapter.__init__": ("generator",),
    "GeneratorDataAdapter.get_jax_iterator": ("generator",),
    "GeneratorDataAdapter.get_tf_dataset": ("generator", "prefetch"),
    "GeneratorDataAdapter.get_torch_dataloader": ("generator",),
    "GrainDatasetAdapter.get_tf_dataset": ("lists_to_tuples",),
    "GrainDatasetAdapter.get_torch_dataloader": ("iterable",),
    "Model._flatten_layers": (),
    "Model._symbolic_build": ("data_batch",),
    "Optimizer": ("_learning_rate", "_trainable_variables"),
    "TFDatasetAdapter.__init__": ("_dataset",),
    "TFDatasetAdapter.get_jax_iterator": ("_dataset",),
    "TFDatasetAdapter.get_tf_dataset": ("_dataset",),
    "TFDatasetAdapter.get_torch_dataloader": ("_dataset",),
    "PyDatasetAdapter.__init__": ("py_dataset", "enqueuer", "shuffle"),
    "PyDatasetAdapter._finite_generator": (
        *("num_batches", "shuffle", "_standardize_batch"),
    ),
    "PyDatasetAdapter.get_jax_iterator": ("_get_iterator",),
    "PyDatasetAdapter.get_tf_dataset": ("_get_iterator",),
    "PyDatasetAdapter.get_torch_dataloader": ("_get_iterator",),
    "PyDatasetAdapter.on_epoch_begin": ("enqueuer", "start"),
    "PyDatasetAdapter.on_epoch_end": ("enqueuer", "stop"),
    "OrderedEnqueuer": ("uid", "executor_fn"),
    "OrderedEnqueuer._run": ("shuffle", "get_index"),
    "TorchDataLoaderAdapter.__init__": ("_dataloader",),
    "Variable": ("_value",),
    "get_data_adapter": (
        *("ArrayDataAdapter", "GeneratorDataAdapter", "GrainDatasetAdapter"),
        *("PyDatasetAdapter", "TFDatasetAdapter", "TorchDataLoaderAdapter"),
        *("class_weight", "sample_weight", "shuffle", "steps_per_epoch"),
    ),
    "serialize_keras_object": ("tf", "available"),
}

if BACKEND == "tensorflow":
    _OF_ALL_GENERATIONS |= {"Trainer._make_function": ("one_step_on_data",)}

# What is used on one backend only.
_WAYS = {
    "tensorflow": ("get_tf_dataset", "_symbolic_build"),
    "jax": ("get_jax_iterator", "_get_iterator"),
    "torch": ("get_torch_dataloader",),
}
if generation.trains_on_ranks:  # of DTensors, which Keras makes of NumPy's batches
    _WAYS["torch"] += ("get_numpy_iterator", "_get_iterator")
_OTHERS = {way for ways in _WAYS.values() for way in ways} - {*_WAYS[BACKEND]}

EXPECTED: Labels = {
    label: (*_OF_ALL_GENERATIONS.get(label, ()), *generation.expected.get(label, ()))
    for label in {**_OF_ALL_GENERATIONS, **generation.expected}
    if label.partition(".")[2] not in _OTHERS
}

# Arguments, and names that `fit` itself must look up or have in its frame: a helper
# with these names does not count.
OWN = {
    "Trainer.fit": {*LOCALS, EPOCH_ITERATOR, "callbacks_module"},
    "reduce_per_replica": {"reduction", "strategy", "values"},
}

# Only where several processes train one model.
OF_SEVERAL_PROCESSES: dict[str, tuple[str, ...]] = {"Trainer.fit": (EPOCH_LOGS,)}
if BACKEND == "torch" and not generation.trains_on_ranks:
    OF_SEVERAL_PROCESSES |= {
        "Trainer.evaluate": (EPOCH_LOGS, "_use_cached_eval_dataset"),
        "Optimizer.apply_gradients": ("apply",),
    }
# Only where they do under TensorFlow's MultiWorkerMirroredStrategy, see multi_worker.
OF_SEVERAL_WORKERS: Labels = {
    "Model._make_function": ("distribute_strategy", "reduce_per_replica"),
    "Model._maybe_symbolic_build": (
        *("_distribute_strategy", "_symbolic_build", "data_batch", "iterator"),
    ),
    "Trainer.fit": ("_maybe_symbolic_build",),
    "Trainer.evaluate": ("_maybe_symbolic_build",),
    "reduce_per_replica": ("reduction", "strategy", "values"),
}
if BACKEND == "tensorflow":
    OWNERS["reduce_per_replica"] = getattr(trainer_module, "reduce_per_replica", object)
# Only with that callback.
OF_TENSORBOARD: Labels = {
    "TensorBoard": (
        *("_epoch_start_time", "_global_train_batch", "_prev_summary_state"),
        *("_pop_writer", "_push_writer", "_train_writer", "_writers"),
    ),
}
