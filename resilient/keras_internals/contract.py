"""What we rely on in Keras's private parts, and the check that it is still there.

Names only: a part that no longer mentions one of these names was changed, and what it
became must be read before a resume can be promised again.
"""

import inspect
from types import CodeType
from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, describe
from resilient.keras_internals import (
    BACKEND,
    EPOCH_ITERATOR,
    LOCALS,
    generation,
    trainer_module,
)
from resilient.keras_internals.unknown import unknown_keras


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


# The backend's, which `keras.Model` inherits `fit` from. Where a library put a wrapper
# in front of `Model.fit`, Keras's own runs inside, and is what this looks at.
_TRAINER: Any = next(
    (c for c in keras.Model.__mro__ if c.__module__ == trainer_module.__name__), object
)

# Where the names below are looked up, so that one that is gone is named, too.
OWNERS: dict[str, Any] = {
    "ArrayDataAdapter": keras_internals.ArrayDataAdapter,
    "CallbackList": keras.callbacks.CallbackList,
    "EpochIterator": keras_internals.EpochIterator,
    "GeneratorDataAdapter": keras_internals.GeneratorDataAdapter,
    "GrainDatasetAdapter": keras_internals.GrainDatasetAdapter,
    "LossScaleOptimizer": keras.optimizers.LossScaleOptimizer,
    "Model": keras.Model,
    "Optimizer": keras.optimizers.Optimizer,
    "OrderedEnqueuer": keras_internals.OrderedEnqueuer,
    "PyDatasetAdapter": keras_internals.PyDatasetAdapter,
    "TensorBoard": keras.callbacks.TensorBoard,
    "TFDatasetAdapter": keras_internals.TFDatasetAdapter,
    "TorchDataLoaderAdapter": keras_internals.TorchDataLoaderAdapter,
    "Trainer": _TRAINER,
    "Variable": keras.Variable,
    "get_data_adapter": keras_internals.data_adapters.get_data_adapter,
    EPOCH_ITERATOR: getattr(trainer_module, EPOCH_ITERATOR, object),
}

# What each must still mention, or what takes its place must be read anew.
_OF_ALL_GENERATIONS: dict[str, tuple[str, ...]] = {
    "Trainer.fit": (
        *LOCALS,
        EPOCH_ITERATOR,
        *("callbacks_module", "_initial_epoch", "reset", "stop_training"),
        *("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"),
        *("class_weight", "_get_metrics_result_or_logs"),
        *(("_jax_state", "_jax_state_synced") if BACKEND == "jax" else ()),
    ),
    "Trainer.compile": ("_compile_config",),
    "Trainer.evaluate": ("_get_metrics_result_or_logs",),
    "EpochIterator.__init__": (
        *("data_adapter", "_current_iterator", "_steps_seen", "_num_batches"),
        *("steps_per_epoch", "steps_per_execution"),
    ),
    "EpochIterator._enumerate_iterator": (
        *("_get_iterator", "_current_iterator", "_steps_seen", "_num_batches"),
    ),
    "EpochIterator.reset": ("_current_iterator",),
    EPOCH_ITERATOR: ("_distributed_dataset",) if BACKEND == "tensorflow" else (),
    "CallbackList.__init__": ("callbacks", "_async_train"),
    "CallbackList._flush_futures": (),
    "ArrayDataAdapter.__init__": (
        *("_num_samples", "_inputs", "_size", "_batch_size", "_shuffle"),
        "_partial_batch_size",
    ),
    "ArrayDataAdapter._get_iterator": ("permutation", "slice_and_convert_fn", "inputs"),
    "ArrayDataAdapter.get_torch_dataloader": ("randperm", "batch_sampler"),
    "ArrayDataAdapter.get_tf_dataset": ("shuffle", "convert_to_sliceable"),
    "GeneratorDataAdapter.__init__": ("generator", "_first_batches"),
    "GeneratorDataAdapter.get_tf_dataset": (
        *("generator", "_first_batches", "from_generator", "prefetch"),
    ),
    "GrainDatasetAdapter.__init__": ("_dataset", "_output_signature", "_batch_size"),
    "GrainDatasetAdapter.get_tf_dataset": (
        *("is_jax_sparse", "is_scipy_sparse", "lists_to_tuples"),
    ),
    "GrainDatasetAdapter.get_torch_dataloader": ("iterable",),
    "Model._symbolic_build": ("data_batch",),
    "Model._flatten_layers": (),
    "LossScaleOptimizer": ("inner_optimizer",),
    "Optimizer": ("_learning_rate", "_trainable_variables"),
    "Optimizer.apply_gradients": ("apply",),
    "TensorBoard": (
        *("_epoch_start_time", "_global_train_batch", "_prev_summary_state"),
        *("_pop_writer", "_push_writer", "_train_dir", "_train_writer"),
        *("_val_dir", "_writers"),
    ),
    "TFDatasetAdapter.__init__": ("_dataset",),
    "TFDatasetAdapter.get_jax_iterator": ("_dataset",),
    "TFDatasetAdapter.get_tf_dataset": ("_dataset",),
    "TFDatasetAdapter.get_torch_dataloader": ("_dataset",),
    "PyDatasetAdapter.__init__": ("py_dataset", "enqueuer", "shuffle"),
    "PyDatasetAdapter._finite_generator": ("num_batches", "shuffle"),
    "PyDatasetAdapter._finite_enqueuer_generator": ("start", "stop", "num_batches"),
    "PyDatasetAdapter.get_tf_dataset": ("_get_iterator", "_standardize_batch"),
    "PyDatasetAdapter.on_epoch_begin": ("enqueuer", "start"),
    "PyDatasetAdapter.on_epoch_end": ("enqueuer", "stop"),
    "OrderedEnqueuer": ("uid", "executor_fn"),
    "OrderedEnqueuer._run": ("shuffle", "_SHARED_SEQUENCES", "get_index"),
    "OrderedEnqueuer.stop": (),
    "TorchDataLoaderAdapter": ("_dataloader",),
    "Variable": ("_value",),
    "get_data_adapter": (
        *("ArrayDataAdapter", "GeneratorDataAdapter", "GrainDatasetAdapter"),
        *("PyDatasetAdapter", "TFDatasetAdapter", "TorchDataLoaderAdapter"),
        *("class_weight", "sample_weight", "shuffle", "steps_per_epoch"),
    ),
}

EXPECTED = {
    label: (*_OF_ALL_GENERATIONS.get(label, ()), *generation.expected.get(label, ()))
    for label in {**_OF_ALL_GENERATIONS, **generation.expected}
}

# Only where several workers train under TensorFlow's MultiWorkerMirroredStrategy, see
# multi_worker.
OF_SEVERAL_WORKERS: dict[str, tuple[str, ...]] = {
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


def changes() -> list[str]:
    """What is not as this module expects it in the installed Keras; empty if all is."""
    found = [
        f"keras.src.backend.{BACKEND}.trainer has no {name}"
        for name in (EPOCH_ITERATOR, "callbacks_module")
        if not hasattr(trainer_module, name)
    ]
    found.extend(_changes_in(EXPECTED))
    if not _keeps_the_seed_generator():
        found.append("the global seed generator is kept under another name")
    iterate = keras_internals.EpochIterator._enumerate_iterator
    if not inspect.isgeneratorfunction(iterate):
        found.append("EpochIterator._enumerate_iterator is no generator")
    return found


def _changes_in(contract: dict[str, tuple[str, ...]]) -> list[str]:
    found = []
    for label, expected in contract.items():
        owner, _, name = label.partition(".")
        thing = getattr(OWNERS[owner], name, None) if name else OWNERS[owner]
        if thing is None:
            found.append(f"{owner} has no {name}")
            continue
        missing = sorted(set(expected) - _names(thing))
        found.extend(f"{label} no longer mentions {gone}" for gone in missing)
    return found


def _keeps_the_seed_generator() -> bool:
    """Whether the global seed generator is where we look for it."""
    expected, seeds = (
        keras_internals.GLOBAL_SEED_GENERATOR,
        keras_internals.seed_generator,
    )
    # A constant of its own since Keras 3.13.
    key = getattr(seeds, "GLOBAL_SEED_GENERATOR", expected)
    known = {key, "GLOBAL_SEED_GENERATOR"} & _names(seeds.global_seed_generator)
    return key == expected and bool(known)


def require_known_keras() -> None:
    """Raise where Keras is not built as this module expects it.

    Raises:
        NotSupportedError: Names the Keras version and what changed, or what stands in
            place of Keras's ``fit``.
    """
    fit = inspect.unwrap(getattr(_TRAINER, "fit", require_known_keras))
    if fit.__module__ not in (trainer_module.__name__, __name__):
        raise NotSupportedError(
            describe(
                "Something replaced the `fit` of Keras's trainer, and what it does is "
                "not known, so an exact resume cannot be promised.",
                f"{fit.__qualname__} of {fit.__module__}",
                "Leave that out. A wrapper around the `fit` of Keras is welcome where "
                "it uses functools.wraps, or is put on keras.Model.",
            )
        )
    _require_none(changes())


def require_known_multi_worker_keras() -> None:
    """Raise where Keras's training on several workers is not built as expected.

    Raises:
        NotSupportedError: Names the Keras version and what changed.
    """
    _require_none(_changes_in(OF_SEVERAL_WORKERS))


def _require_none(found: list[str]) -> None:
    if found:
        raise unknown_keras("; ".join(found))
