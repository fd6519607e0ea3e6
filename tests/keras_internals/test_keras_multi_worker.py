"""The corrections of Keras's ``fit`` on several workers, without any cluster."""

import contextlib
import threading
from types import SimpleNamespace

import keras
import pytest

from resilient import NotSupportedError, keras_internals
from resilient.keras_internals import multi_worker
from resilient.keras_internals.multi_worker import corrected

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)

trainer = keras_internals.trainer_module


@pytest.fixture(autouse=True)
def self_tests_run_anew():
    yield
    multi_worker.reduces_logs_along_batch.cache_clear()
    multi_worker.builds_from_reduced_batch.cache_clear()


class Model(keras.Sequential):
    """Believes that it trains on several workers."""

    def __init__(self, strategy):
        super().__init__([keras.Input((1,)), keras.layers.Dense(1)])
        self.compile("sgd", "mse")
        self.reduced = []
        self.built_from = []
        vars(self)["_distribute_strategy"] = strategy

    def _symbolic_build(self, iterator=None, data_batch=None):
        self.built_from.append(data_batch)


@pytest.fixture
def reduced():
    return []


@pytest.fixture
def model(reduced):
    def reduce(op, value, axis):
        reduced.append((op, axis))
        return value

    return Model(multi_worker._stand_in(reduce))


def first_batch():
    """What Keras's epoch iterator yields, with one value for each of two replicas."""
    import tensorflow as tf

    class PerReplica(tf.distribute.DistributedValues):
        values = (tf.zeros((4, 1)), tf.ones((4, 1)))

    batch = PerReplica()
    return iter([(0, 0, iter([(batch, batch)]))])


def test_this_keras_needs_both_corrections():
    """Keras 3.12 to 3.16: if a later one does not, say so in the documentation."""
    assert multi_worker.reduces_logs_along_batch()
    assert multi_worker.builds_from_reduced_batch()


def test_a_model_is_built_from_one_replicas_batch(model, reduced):
    with corrected(model):
        model._maybe_symbolic_build(iterator=first_batch())
    (batch,) = model.built_from
    assert [part.numpy().sum() for part in batch] == [0, 0]
    assert reduced == []


def test_train_on_batch_builds_as_before(model):
    with corrected(model):
        model._maybe_symbolic_build(data_batch=("x", "y"))
    assert model.built_from == [("x", "y")]


@pytest.mark.parametrize("reduction", ["auto", "mean"])
def test_logs_are_averaged_over_replicas(model, reduced, reduction):
    with corrected(model):
        trainer.reduce_per_replica({"loss": 1.0}, model.distribute_strategy, reduction)
    assert reduced == [("MEAN", None)]


def test_sums_are_reduced_as_keras_does(model, reduced):
    model.distribute_strategy.reduce = lambda *args: reduced.append(args)
    with corrected(model):
        trainer.reduce_per_replica({"loss": 1.0}, model.distribute_strategy, "sum")
    assert reduced == [("SUM", 1.0)]


def test_all_is_keras_own_after_a_corrected_fit_failed(model):
    reduce, build = trainer.reduce_per_replica, model._maybe_symbolic_build
    with contextlib.suppress(ZeroDivisionError), corrected(model):
        assert trainer.reduce_per_replica is not reduce
        assert model._maybe_symbolic_build != build
        raise ZeroDivisionError
    assert trainer.reduce_per_replica is reduce
    assert model._maybe_symbolic_build == build


def test_corrections_can_be_entered_twice(model):
    reduce, build = trainer.reduce_per_replica, model._maybe_symbolic_build
    with corrected(model):
        with corrected(model):
            pass
        assert trainer.reduce_per_replica is not reduce
        model._maybe_symbolic_build(iterator=first_batch())
    assert len(model.built_from) == 1
    assert trainer.reduce_per_replica is reduce
    assert model._maybe_symbolic_build == build


def test_another_model_is_not_corrected(model):
    """One that a callback evaluates, say, under a strategy of its own."""
    seen = []
    other = Model(multi_worker._stand_in(lambda op, value, axis: seen.append(axis)))
    with corrected(model):
        trainer.reduce_per_replica({"loss": 1.0}, other.distribute_strategy, "auto")
        assert "_maybe_symbolic_build" not in vars(other)
    assert seen == [0]


def test_another_thread_is_not_corrected(model, reduced):
    def reduce():
        trainer.reduce_per_replica({"loss": 1.0}, model.distribute_strategy, "auto")

    thread = threading.Thread(target=reduce)
    with corrected(model):
        thread.start()
        thread.join()
    assert reduced == [("MEAN", 0)]


def test_one_worker_is_left_alone():
    import tensorflow as tf

    reduce = trainer.reduce_per_replica
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy()):
        with strategy.scope():
            model = Model(strategy)
        with corrected(model):
            assert trainer.reduce_per_replica is reduce
            assert "_maybe_symbolic_build" not in vars(model)


def test_a_keras_that_is_right_is_left_alone(model, monkeypatch):
    def reduce(values, strategy, reduction):
        return {k: strategy.reduce("MEAN", v, axis=None) for k, v in values.items()}

    def build(self, iterator=None, data_batch=None):
        self._symbolic_build(data_batch=data_batch)

    monkeypatch.setattr(multi_worker, "OF_SEVERAL_WORKERS", {})
    monkeypatch.setattr(multi_worker, "RELEASE", (3, 99))
    monkeypatch.setattr(trainer, "reduce_per_replica", reduce)
    monkeypatch.setattr(keras.Model, "_maybe_symbolic_build", build)
    with corrected(model):
        assert trainer.reduce_per_replica is reduce
        assert "_maybe_symbolic_build" not in vars(model)


def test_a_later_keras_that_is_wrong_is_refused(model, monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.99.0")
    monkeypatch.setattr(multi_worker, "RELEASE", (3, 99))
    with (
        pytest.raises(NotSupportedError, match=r"Keras 3\.99\.0: .*keras#20585"),
        corrected(model),
    ):
        pass


def test_what_was_replaced_by_somebody_is_refused(model, monkeypatch):
    monkeypatch.setattr(keras.Model, "_maybe_symbolic_build", lambda self: None)
    found = "Model._maybe_symbolic_build is .*<lambda> of test_keras_multi_worker"
    with pytest.raises(NotSupportedError, match=found), corrected(model):
        pass


def test_the_versions_are_those_that_the_refusal_names():
    first, last = (
        ".".join(map(str, v)) for v in (multi_worker.FIRST, multi_worker.LAST)
    )
    assert f"It knows Keras {first} to {last}." in str(
        keras_internals.unknown_keras("x")
    )


def test_a_model_of_another_backend_is_left_alone(monkeypatch):
    monkeypatch.setattr(keras_internals, "BACKEND", "jax")
    with corrected(SimpleNamespace()):
        pass
