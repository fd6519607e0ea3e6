"""Creates every variable before a checkpoint is restored into them.

TensorFlow without a strategy builds model, metrics and optimizer in the first trace of
the train function; some custom ``train_step`` methods build a second optimizer on first
use. A resumed run restores before its first step, so we build first: symbolically if
Keras can, otherwise by one real step on one batch, which is undone.
"""

import contextlib
import logging
from collections.abc import Callable, Container, Iterator
from typing import Any

import keras

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.state.rng import kept_random_state
from resilient.state.variables import kept, leaves, variables_of

logger = logging.getLogger(__name__)


def ensure_built(
    model: keras.Model, iterator: Any, saved: list[dict[str, Any]], backend: Backend
) -> None:
    """Build a compiled model until its variables match the saved ones, if possible.

    Args:
        model: The model, whose train function exists.
        iterator: The training iterator of this fit.
        saved: The checkpoint's list of variables.
        backend: The model's backend.
    """
    if not _lacks_some(model, saved):
        return
    ways: list[Callable[[], None]] = [lambda: try_a_step(model, iterator, backend)]
    if keras_internals.BACKEND == "tensorflow":
        ways.insert(0, lambda: _build_symbolically(model, iterator))
        if not has_keras_step(model):
            # Its optimizer may train only some of the weights, and its metrics may be
            # idle: a symbolic build would build more than its steps do.
            ways.reverse()
    with kept_random_state(backend):
        for build in ways:
            if _lacks_some(model, saved):
                build()


def build_early(
    model: keras.Model, iterator: Any, backend: Backend, leave: Container[object]
) -> None:
    """Create before the first step the variables that the step would create.

    A model with a custom ``train_step`` may create others, and is left alone. So is one
    without weights: its layers may draw random numbers when they are built.

    Args:
        model: The compiled model, about to train for the first time.
        iterator: The training iterator of this fit.
        backend: The model's backend.
        leave: Random generators that prefetching data draws from.
    """
    if (
        keras_internals.BACKEND == "tensorflow"
        and has_keras_step(model)
        and is_built(model)
    ):
        with kept_random_state(backend, leave):  # its `call` may draw
            _build_symbolically(model, iterator)


def has_keras_step(model: keras.Model) -> bool:
    """Whether it trains as Keras does, without a ``train_step`` of its own."""
    return type(model).train_step is keras.Model.train_step


def build_optimizer(model: keras.Model) -> bool:
    """Create the variables of a built model's optimizer, named as its first step would.

    Returns:
        Whether any was created.
    """
    optimizer = getattr(model, "optimizer", None)  # none before compile
    if optimizer is None or optimizer.built or not model.built:
        return False
    in_step = keras_internals.BACKEND == "tensorflow"  # others build before the first
    with contextlib.ExitStack() as stack:
        if in_step:
            stack.enter_context(model.distribute_strategy.scope())
            stack.enter_context(keras.name_scope(optimizer.name, caller=optimizer))
        optimizer.build(model.trainable_variables)
    return True


def is_built(model: keras.Model) -> bool:
    """Whether the model has all its weights; the optimizer may lack variables."""
    return all(layer.built for layer in model._flatten_layers())


def _lacks_some(model: keras.Model, saved: list[dict[str, Any]]) -> bool:
    """Whether building may help, which only adds variables."""
    return len([*variables_of(model)]) < len(saved)


def _build_symbolically(model: keras.Model, iterator: Any) -> None:
    spec, optimizer = keras_own(iterator).element_spec, model.optimizer
    of_step = optimizer is not None and not optimizer.built
    try:
        batch = keras.tree.map_structure(
            lambda s: keras.KerasTensor(tuple(s.shape), s.dtype.name), spec
        )
        if of_step:  # Keras would give its variables other names than a step does
            optimizer.built = True
        model._symbolic_build(data_batch=batch)
    except Exception:  # user code may raise anything on symbolic input
        logger.debug("symbolic build failed; one real step builds", exc_info=True)
        return
    finally:
        if of_step:
            optimizer.built = False
    build_optimizer(model)


def take_a_step(model: keras.Model, iterator: Any, backend: Backend) -> None:
    """Train one step and undo it; arguments as for ``ensure_built``."""
    with without_a_trace(model, backend):
        model.train_function(_data_for_a_step(model, iterator))


@contextlib.contextmanager
def without_a_trace(model: keras.Model, backend: Backend) -> Iterator[None]:
    """Undo what steps in the body change: variables and the global random state."""
    with kept_random_state(backend), kept(backend, leaves(model)):
        yield


def try_a_step(model: keras.Model, iterator: Any, backend: Backend) -> None:
    """Train one step and undo it, if steps make anything and this one succeeds."""
    if keras_internals.BACKEND == "jax":
        return  # stateless: steps create no variables
    # A step that fails here also fails in training, which reports the error.
    with contextlib.suppress(Exception):
        take_a_step(model, iterator, backend)


def keras_own(iterator: Any) -> Any:
    """The iterable inside Keras's own iterator, our base class."""
    return super(type(iterator), iterator)._get_iterator()


def _data_for_a_step(model: keras.Model, iterator: Any) -> Any:
    """An input for Keras's train function, with at least one batch."""
    if keras_internals.BACKEND == "tensorflow":
        adapter = iterator.data_adapter
        if not isinstance(adapter, keras_internals.ArrayDataAdapter):
            # Another thread prefetches batches, which would move the data from the
            # checkpoint's position.
            return _repeated_batch(model, adapter)
    batches = iter(keras_own(iterator))
    return [next(batches)] if keras_internals.BACKEND == "torch" else batches


def _repeated_batch(model: keras.Model, adapter: Any) -> Any:
    """A TensorFlow iterator over zeros of the shapes and types of real batches.

    Where a pipeline does not know its widths, over its first batch: what drawing that
    changes, the resume sets.
    """
    import tensorflow as tf

    def is_known(spec: Any) -> bool:
        ragged = isinstance(spec, tf.RaggedTensorSpec)
        return ragged or spec.shape[1:].is_fully_defined()

    def blank(spec: Any) -> Any:
        first, *rest = spec.shape
        shape = [2 if first is None else first, *(32 if n is None else n for n in rest)]
        zeros = tf.zeros(shape, spec.dtype)
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.sparse.from_dense(zeros)
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_tensor(
                zeros,
                ragged_rank=spec.ragged_rank,
                row_splits_dtype=spec.row_splits_dtype,
            )
        return zeros

    dataset = adapter.get_tf_dataset()
    spec, of_tf = dataset.element_spec, keras_internals.TFDatasetAdapter
    if isinstance(adapter, of_tf) and not all(map(is_known, tf.nest.flatten(spec))):
        batch = next(iter(dataset))
    else:
        batch = tf.nest.map_structure(blank, spec)
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    return iter(model.distribute_strategy.experimental_distribute_dataset(batches))
