"""Records and repeats TensorFlow's traces of Keras's step: shapes of batches, in order.

Since 3.16 Keras traces the step for the exact shapes of the first batch, and when
others come, for all sizes of the dimensions that differ. The closest trace computes a
batch, and two traces may round differently: what a step computes depends on the batches
before. So a resumed process first traces what was traced, in that order.

Before 3.16, and if a step trains several batches, it is traced for the iterator's
element spec. That depends on earlier fits only: their traces are dropped.

``tf.random.*`` inside a traced function keeps its state in the kernel, out of reach: a
resume starts it over. Such operations are found here. Keras's layers and
``keras.random`` draw statelessly from seed generators, which are variables; JAX's
operations are stateless, and torch's draw from the global generator.
"""

import contextlib
import inspect
import logging
from typing import Any

import keras

from resilient.keras_internals import generation
from resilient.keras_internals.names import BACKEND

logger = logging.getLogger(__name__)

# What Keras calls its step, and that of several batches.
_ONE, _SEVERAL = "one_step_on_data", "multi_step_on_iterator"

# Functions of tf.data, see data/tf_data, and single operations, whose state is saved.
_OTHERS = ("__inference_Dataset_", "__wrapped__")
# Of each trace, for each tensor of a batch, its shape in each replica.
Shapes = list[list[list[list[int | None] | None]]]

# Attributes of a model, and what makes them.
FUNCTIONS = {
    "train_function": "make_train_function",
    "test_function": "make_test_function",
}


def traced_functions(function: Any) -> list[Any]:
    """The concrete functions that TensorFlow traced for a function of Keras's.

    It closes over a ``tf.function``, whose traces TensorFlow has no public way to list.
    """
    return [
        traced
        for traceable in _traceable(function)
        for traced in traceable._list_all_concrete_functions()
    ]


def matter(model: keras.Model) -> bool:
    """Whether what a step computes depends on the batches before it."""
    # Several steps at once are traced for an iterator, without sizes.
    one = int(model.steps_per_execution) == 1
    return BACKEND == "tensorflow" and generation.traces_shapes and one


def of(model: keras.Model) -> dict[str, Shapes]:
    """What a model's functions were traced for, by their names."""
    if not matter(model):
        return {}
    found = {name: _shapes(model, name) for name in FUNCTIONS}
    return {name: shapes for name, shapes in found.items() if shapes}


def retrace(model: keras.Model, name: str, shapes: Shapes, spec: Any) -> bool:
    """Trace a function for these shapes only, in their order.

    Args:
        model: Its function is made, and what it uses is built.
        name: Of the function.
        shapes: What ``of`` returned.
        spec: TensorFlow's ``element_spec`` of the batches.

    Returns:
        Whether that succeeded.
    """
    if _shapes(model, name) == shapes or not _is_own(model, name):
        return True
    replicas = [len(each) for each in _of_batch(spec)]
    if any([each and len(each) for each in one] != replicas for one in shapes):
        return False
    getattr(model, FUNCTIONS[name])(force=True)  # a step that built it was traced
    try:
        for each in _traceable(getattr(model, name)):
            if each.__name__ == _ONE:
                for one in shapes:
                    each.get_concrete_function(_with_shapes(spec, one))
    except Exception:  # a custom step may raise anything; its first batch will, too
        logger.debug("a step could not be traced again", exc_info=True)
    return _shapes(model, name) == shapes


def forget_others(model: keras.Model, name: str, spec: Any) -> None:
    """Make a function again if it was traced for other batches than of this spec."""
    mine = _of_batch(spec)
    if any(shapes != mine for shapes in _shapes(model, name)):
        getattr(model, FUNCTIONS[name])(force=True)


def _is_own(model: keras.Model, name: str) -> bool:
    """Whether Keras makes the function, and no subclass."""
    maker = FUNCTIONS[name]
    return getattr(type(model), maker) is getattr(keras.Model, maker)


def _traceable(function: Any) -> list[Any]:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not set yet
            found.append(inspect.unwrap(cell.cell_contents, stop=_is_traceable))
    return [each for each in found if _is_traceable(each)]


def _is_traceable(function: Any) -> bool:
    return hasattr(function, "_list_all_concrete_functions")


def _shapes(model: keras.Model, name: str) -> Shapes:
    found: Shapes = []
    own = _traceable(getattr(model, name, None)) if _is_own(model, name) else ()
    for function in own:
        if function.__name__ not in (_ONE, _SEVERAL):
            continue
        for traced in function._list_all_concrete_functions():
            (data,), _ = traced.structured_input_signature
            shapes = _of_batch(getattr(data, "element_spec", data))  # of an iterator
            if shapes not in found:  # the trace that made variables was done twice
                found.append(shapes)
    return found


def _of_batch(spec: Any) -> list[Any]:
    import tensorflow as tf

    return [_of_tensor(each) for each in tf.nest.flatten(spec) if not _is_none(each)]


def _is_none(spec: Any) -> bool:
    import tensorflow as tf

    return spec is None or isinstance(spec, tf.NoneTensorSpec | tf.OptionalSpec)


def _of_tensor(spec: Any) -> list[list[int | None] | None]:
    parts = [each.shape for each in _replicas(spec)]
    return [None if part.rank is None else part.as_list() for part in parts]


def _replicas(spec: Any) -> list[Any]:
    """The specification in each replica."""
    import tensorflow as tf

    if hasattr(spec, "shape"):
        return [spec]
    return list(tf.nest.flatten(spec, expand_composites=True))


def _with_shapes(spec: Any, shapes: list[Any]) -> Any:
    """The specification of a batch with other shapes."""
    import tensorflow as tf

    left = iter(shapes)

    def tensor(spec: Any) -> Any:
        if _is_none(spec):
            return None
        parts = _replicas(spec)
        found = [_with_shape(*each) for each in zip(parts, next(left), strict=True)]
        return found[0] if parts[0] is spec else type(spec)(*found)

    return tf.nest.map_structure(tensor, spec)


def _with_shape(spec: Any, shape: list[int | None] | None) -> Any:
    import tensorflow as tf

    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        splits = spec.row_splits_dtype
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, splits)
    return tf.TensorSpec(shape, spec.dtype)


def stateful_random_operations(model: keras.Model) -> list[str]:
    """Names of such operations in the model's traced train function, sorted."""
    if BACKEND != "tensorflow":
        return []
    found: set[str] = set()
    for function in traced_functions(model.train_function):
        graph: Any = function.graph.as_graph_def()
        found.update(_drawing(graph.node))
        for nested in graph.library.function:
            found.update(_drawing(nested.node_def))
    return sorted(found)


def operations_of_new_functions(known: set[str]) -> list[str]:
    """Names of such operations in all functions traced in this process.

    Args:
        known: Functions to skip; inspected ones are added.
    """
    if BACKEND != "tensorflow":
        return []
    from tensorflow.python.eager import context

    functions, found = context.context(), set[str]()
    for name in set(functions.list_function_names()) - known:
        known.add(name)
        text = name.decode() if isinstance(name, bytes) else name
        if not text.startswith(_OTHERS):
            found |= _drawing(functions.get_function_def(name).node_def)
    return sorted(found)


def _drawing(nodes: Any) -> set[str]:
    # Seeds of stateless operations are inputs. cuDNN's draw for a dropout, which Keras
    # does itself.
    return {
        f"{n.name} ({n.op})"
        for n in nodes
        if "seed2" in n.attr and not n.op.startswith("CudnnRNN")
    }
