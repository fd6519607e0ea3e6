"""Corrects Keras's ``fit`` under TensorFlow's ``MultiWorkerMirroredStrategy``.

Keras 3 fails there (https://github.com/keras-team/keras/issues/20585), in two places:

* before training it reduces the batches of all replicas to one, only to build the model
  with it, and gets no tensor. One local replica's batch will do: shapes and types are
  the same;
* it reduces each step's logs with ``strategy.reduce("MEAN", v, axis=0)``, which is for
  tensors whose first axis is the batch. Logs are scalars: ``axis=None`` is the mean
  over replicas that other strategies get.

While entered, ``corrected`` replaces both, for one model and one thread, and only what
this Keras gets wrong. To find out, Keras's own functions run on a stand-in for the
strategy, which computes nothing and communicates with no other process. Nothing else is
changed, and under other strategies nothing at all.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import keras

from resilient import keras_internals
from resilient.keras_internals import contract
from resilient.keras_internals.expected import OF_SEVERAL_WORKERS
from resilient.keras_internals.unknown import RELEASE, unknown_keras

# The releases whose functions we have read. A later one that still fails must be read
# before anything in it is replaced.
FIRST, LAST = (3, 12), (3, 16)

_local = threading.local()
_lock = threading.Lock()
_entered = 0
_plain_reduce: Any = None


@contextlib.contextmanager
def corrected(model: keras.Model) -> Iterator[None]:
    """Let ``model.fit`` and ``model.evaluate`` run on several workers in this thread.

    Args:
        model: Any compiled model. Nothing is changed if it does not train on several
            workers under ``MultiWorkerMirroredStrategy``, or if this Keras is right.

    Raises:
        NotSupportedError: This Keras is wrong, and not a known release.
    """
    strategy = _strategy_of_several_workers(model)
    if strategy is None:
        yield
        return
    contract.require_known(OF_SEVERAL_WORKERS)
    build, reduce = builds_from_reduced_batch(), reduces_logs_along_batch()
    if build or reduce:
        _require_known_version()
    with contextlib.ExitStack() as corrections:
        if build:
            corrections.enter_context(_building_from_local_batch(model))
        if reduce:
            corrections.enter_context(_reducing_over_replicas(strategy))
        yield


def _strategy_of_several_workers(model: Any) -> Any:
    """The model's strategy, if Keras fails under it."""
    if keras_internals.BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    strategy = model.distribute_strategy
    kind = tf.distribute.MultiWorkerMirroredStrategy
    several = isinstance(strategy, kind) and strategy.extended._in_multi_worker_mode()
    return strategy if several else None


def _require_known_version() -> None:
    if not FIRST <= RELEASE <= LAST:
        raise unknown_keras(
            "fit fails under MultiWorkerMirroredStrategy (keras#20585), and the "
            "corrections of this library were not tried with it"
        )


# Building the model. ---------------------------------------------------------------


@contextlib.contextmanager
def _building_from_local_batch(model: Any) -> Iterator[None]:
    if "_maybe_symbolic_build" in vars(model):  # already entered
        yield
        return
    plain = model._maybe_symbolic_build

    def first(value: Any) -> Any:
        return model.distribute_strategy.experimental_local_results(value)[0]

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        for _, _, batches in () if iterator is None else iterator:
            # What Keras takes from its iterator: the first batch, and no more.
            data_batch = keras.tree.map_structure(first, next(batches))
            break
        plain(data_batch=data_batch)

    # Past Keras's tracking of attributes, in front of the method of the class.
    vars(model)["_maybe_symbolic_build"] = build
    try:
        yield
    finally:
        del vars(model)["_maybe_symbolic_build"]


# Reducing the logs of a step. ------------------------------------------------------


@contextlib.contextmanager
def _reducing_over_replicas(strategy: Any) -> Iterator[None]:
    outer = getattr(_local, "strategy", None)
    _local.strategy = strategy
    _install()
    try:
        yield
    finally:
        _uninstall()
        _local.strategy = outer


def _install() -> None:
    global _entered, _plain_reduce
    module: Any = keras_internals.trainer_module
    with _lock:
        if not _entered:
            _plain_reduce = module.reduce_per_replica
            module.reduce_per_replica = _reduce_per_replica
        _entered += 1


def _uninstall() -> None:
    global _entered
    module: Any = keras_internals.trainer_module
    with _lock:
        _entered -= 1
        if not _entered:
            module.reduce_per_replica = _plain_reduce


def _reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
    """Called by Keras in place of its own function, when it traces a step."""
    ours = strategy is getattr(_local, "strategy", None)
    if not ours or reduction not in ("auto", "mean"):
        return _plain_reduce(values, strategy, reduction)
    return keras.tree.map_structure(
        lambda value: strategy.reduce("MEAN", value, axis=None), values
    )


# Whether this Keras needs it. ------------------------------------------------------


@cache
def reduces_logs_along_batch() -> bool:
    """Whether Keras reduces a scalar over replicas as if it had a batch axis."""
    import tensorflow as tf

    module: Any = keras_internals.trainer_module
    axes: list[Any] = []

    def reduce(reduce_op: Any, value: Any, axis: Any = None) -> Any:
        axes.append(axis)
        return value

    module.reduce_per_replica({"loss": tf.zeros(())}, _stand_in(reduce), "auto")
    return axes == [0]


@cache
def builds_from_reduced_batch() -> bool:
    """Whether Keras reduces the first batch over replicas to build a model with it."""
    import tensorflow as tf

    reduced: list[Any] = []

    def reduce(reduce_op: Any, value: Any, axis: Any = None) -> Any:
        reduced.append(value)
        return tf.zeros((1, 1))

    strategy = _stand_in(reduce)

    class Model:
        """The parts of a model that Keras's method needs."""

        _distribute_strategy = distribute_strategy = strategy

        def _symbolic_build(self, data_batch: Any) -> None:
            """Nothing to build."""

    batch = tf.distribute.DistributedValues()  # of no replica: nobody looks at it
    build: Any = keras.Model._maybe_symbolic_build
    build(Model(), iterator=iter([(0, 0, iter([(batch, batch)]))]))
    return bool(reduced)


def _stand_in(reduce: Callable[..., Any]) -> Any:
    """A stand-in for a strategy of several workers, without a cluster."""
    import tensorflow as tf

    class Extended:
        def _in_multi_worker_mode(self) -> bool:
            return True

    class StandIn(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
        """Reduces with the function it is given."""

        extended = Extended()

        def __init__(self) -> None:
            """Not the strategy's, which would look for other workers."""

        def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
            return reduce(reduce_op, value, axis)

        def experimental_local_results(self, value: Any) -> Any:
            return getattr(value, "values", (value,))

        def scope(self) -> contextlib.AbstractContextManager[Any]:
            return contextlib.nullcontext()

    return StandIn()
