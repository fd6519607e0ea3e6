"""Every tensor that training may change is found, once, in an order that stays."""

import contextlib
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support import fitting

from resilient import CheckpointMismatchError, ResilientFit, keras_internals
from resilient.backends import get_backend
from resilient.data.shard import ShardedData
from resilient.data.source import SourceContext
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.state.build import ensure_built, is_built
from resilient.state.layouts import differences, weight_differences
from resilient.state.variables import assign, leaves, leaves_of, live_tensors
from resilient.training.fit.iterators import TrainingIterator

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

BACKEND = keras_internals.BACKEND


def stepped(net):
    """A model after one step, so that all of it is built."""
    x, y = fitting.data(4)
    net.train_on_batch(x, y)
    return net


def layout(net):
    return [leaf.to_json() for leaf in leaves(net)]


def counts(net):
    """How many leaves each group has."""
    found = {}
    for leaf in leaves(net):
        group = leaf.name.partition(".")[0]
        found[group] = found.get(group, 0) + 1
    return found


def targets(net):
    """Ids of all tensors of the state."""
    return [id(getattr(leaf.target, "_value", leaf.target)) for leaf in leaves(net)]


def holds(net, *variables):
    """Whether each variable is in the state, exactly once."""
    return [targets(net).count(id(getattr(v, "_value", v))) for v in variables] == [
        1
    ] * len(variables)


# Which, how often, in which order -------------------------------------------------


def test_the_groups_are_those_of_keras():
    net = stepped(fitting.model())
    assert counts(net) == {
        "trainable": 4,
        "non_trainable": 1,  # the seed of the dropout
        "optimizer": len(net.optimizer.variables),
        "metrics": 2,
    }
    assert holds(net, *net.variables, *net.optimizer.variables, *net.metrics_variables)


def test_names_are_unique_and_safe_whatever_layers_are_called():
    net = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, name="größe: 1"),
            keras.layers.Dense(2, name="a-b" if BACKEND == "torch" else "a.b-c"),
            keras.layers.Dense(2, name="x" * 200),
        ]
    )
    net.compile("adam", "mse")
    names = [leaf.name for leaf in leaves(net)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in names)


def test_order_and_layout_stay_whatever_keras_numbers():
    first = stepped(fitting.model())
    second = stepped(fitting.model())  # other automatic names
    assert first.name != second.name
    assert layout(first) == layout(first)
    plain = [(leaf.name[:20], leaf.shape, leaf.dtype) for leaf in leaves(first)]
    groups = [name[: name.index(".", name.index(".") + 1)] for name, *_ in plain]
    again = [leaf.name for leaf in leaves(second)]
    assert [name[: len(group)] for name, group in zip(again, groups, strict=True)] == (
        groups
    )
    assert differences(layout(first), leaves(second)) == []


def test_shapes_and_dtypes_are_told_as_backends_name_them():
    net = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_bfloat16")]
    )
    kernel, bias = leaves(net)[:2]
    assert (kernel.shape, kernel.dtype) == ((3, 2), "float32")
    assert (bias.shape, bias.dtype) == ((2,), "float32")
    half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="float16")])
    assert [leaf.dtype for leaf in leaves(half)] == ["float16", "float16"]


def test_a_shared_layer_is_found_once():
    shared = keras.layers.Dense(3)
    x = keras.Input((3,))
    net = keras.Model(x, keras.layers.Dense(1)(shared(shared(x))))
    net.compile("sgd", "mse")
    net.same, net.kernels = shared, [shared.kernel, {"again": shared.kernel}]
    assert holds(net, shared.kernel, shared.bias)
    assert counts(net)["trainable"] == 4
    assert "extra" not in counts(net)


def test_a_model_inside_a_model_is_found():
    inner = fitting.model()
    net = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    assert holds(net, *inner.variables)


# What hangs on a model or a layer -------------------------------------------------


class Holder(keras.layers.Layer):
    """A layer with state in attributes of many kinds."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")
        self.seeds = [keras.random.SeedGenerator(1), (keras.random.SeedGenerator(2),)]
        self.by_name = {"a": keras.random.SeedGenerator(3), "b": {"c": 4, "d": None}}

    def call(self, x):
        return x

    def held(self):
        seeds = [self.seeds[0], self.seeds[1][0], self.by_name["a"]]
        return [*self.seen.variables, *(seed.state for seed in seeds)]


def test_metrics_and_seeds_in_lists_and_dicts_of_layers_are_found_once():
    holder = Holder()
    net = keras.Sequential([keras.Input((3,)), holder, keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    net.generators = {"more": [keras.random.SeedGenerator(5)]}
    stepped(net)
    assert holds(net, *holder.held(), net.generators["more"][0].state)
    names = [leaf.name for leaf in leaves(net)]
    assert len(set(names)) == len(names)


def test_a_list_that_holds_itself_is_looked_through_once():
    """Keras lets a loss be made with anything."""
    loss = keras.losses.MeanSquaredError()
    loss.weights = [keras.Variable(1.0), keras.Variable(2.0)]
    loss.weights.append({"all": loss.weights, "loss": loss})
    net = stepped(fitting.model(loss=loss))
    assert holds(net, *loss.weights[:2])
    assert counts(net)["extra"] == 2


def test_a_second_optimizer_is_found_as_soon_as_it_is_built():
    net = stepped(fitting.model())
    net.second = keras.optimizers.Adam()
    before = counts(net)
    net.second.build(net.trainable_variables[:2])
    assert holds(net, *net.second.variables)
    assert counts(net) == before | {"extra": len(net.second.variables)}
    paths = {leaf.path for leaf in leaves(net) if leaf.name.startswith("extra.")}
    assert all("second" in path for path in paths)


def test_the_models_own_optimizer_counts_once_under_two_names():
    net = stepped(fitting.model())
    before = counts(net)
    net.mine = net.optimizer
    net.all_of_them = [net.optimizer]
    assert counts(net) == before


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.Variable is TensorFlow's")
def test_raw_tensorflow_variables_are_found():
    import tensorflow as tf

    net = fitting.model()
    net.counter = tf.Variable(3)
    net.layers[0].table = {"rows": [tf.Variable([1.0, 2.0])]}
    assert holds(net, net.counter, net.layers[0].table["rows"][0])
    found = {leaf.path: (leaf.shape, leaf.dtype) for leaf in leaves(net)}
    assert found["counter"] == ((), "int32")


@pytest.mark.skipif(BACKEND != "torch", reason="torch modules need torch")
def test_buffers_and_parameters_of_torch_modules_are_found():
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    wrapped = keras.layers.TorchModuleWrapper(module)
    net = keras.Sequential([keras.Input((3,)), wrapped, keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    stepped(net)
    assert holds(net, *module.buffers(), *module.parameters())
    assert {leaf.dtype for leaf in leaves(net)} >= {"float32", "int64"}


def test_what_is_no_tensor_of_the_model_is_left_alone():
    net = stepped(fitting.model())
    before = counts(net)
    net.note, net.table, net.function = "text", np.zeros(3), len
    net.history_of_mine = [{"loss": 1.0}]
    assert counts(net) == before


def test_a_model_without_optimizer_or_metrics_has_weights_only():
    net = keras.Sequential(fitting.layers())
    assert counts(net) == {"trainable": 4, "non_trainable": 1}


def test_live_tensors_are_the_values_under_the_names_of_leaves():
    net = stepped(fitting.model())
    found = live_tensors(net, leaves(net))
    assert list(found) == [leaf.name for leaf in leaves(net)]
    arrays = get_backend().snapshot(found).arrays
    np.testing.assert_array_equal(
        next(iter(arrays.values())), keras.ops.convert_to_numpy(net.layers[0].kernel)
    )


# How two layouts differ -----------------------------------------------------------


def test_differences_name_what_differs():
    net = stepped(fitting.model())
    wider = stepped(fitting.model(of=lambda: fitting.layers(width=5)))
    found = differences(layout(net), leaves(wider))
    assert any(
        "this model has (3, 5) float32" in line and "(3, 2) float32" in line
        for line in found
    )
    deeper = fitting.model(of=lambda: [*fitting.layers(), keras.layers.Dense(1)])
    found = differences(layout(net), leaves(deeper))
    assert any("trainable variables: the checkpoint has 4, this" in x for x in found)
    many = leaves(net) * 9
    *named, last = differences(
        [{**each.to_json(), "shape": [9]} for each in many], many
    )
    assert len(named) == 20
    assert last == f"and {len(many) - 20} more variables"
    assert differences(layout(net), leaves(net)) == []


def test_a_dtype_alone_is_a_difference():
    net, half = (
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=dtype)])
        for dtype in ("float32", "float16")
    )
    (kernel, _) = differences(layout(net), leaves(half))
    assert "(3, 2) float32" in kernel
    assert "(3, 2) float16" in kernel


def test_freezing_moves_weights_and_makes_no_others():
    net = stepped(fitting.model())
    before = layout(net)
    net.layers[0].trainable = False
    assert differences(before, leaves(net)) != []
    assert weight_differences(before, leaves(net)) == []
    wider = stepped(fitting.model(of=lambda: fitting.layers(width=5)))
    found = weight_differences(before, leaves(wider))
    assert found
    assert not any("optimizer" in line for line in found)


# Building before a restore --------------------------------------------------------


def training_iterator(net):
    x, y = fitting.data()
    given = {"x": x, "y": y, "batch_size": 4, "shuffle": True}
    if BACKEND == "tensorflow":
        given["distribute_strategy"] = net.distribute_strategy
    inputs = SimpleNamespace(  # all that is asked of an attempt before training
        settings=lambda argument: SourceContext(get_backend(), argument=argument),
        share=ShardedData(),
    )
    session = SimpleNamespace(parallel=ParallelStrategy())
    return TrainingIterator(session, inputs, given)


def build(net, saved):
    """``ensure_built``, after what Keras's ``fit`` does before training begins."""
    iterator = training_iterator(net)
    if BACKEND != "tensorflow":
        net._symbolic_build(iterator=iterator)
    iterator.reset()
    net.make_train_function()
    state = fitting.random_state()
    before = {leaf.path: np.copy(value(leaf)) for leaf in leaves(net)}
    ensure_built(net, iterator, saved, get_backend())
    assert fitting.random_state() == state
    after = {leaf.path: value(leaf) for leaf in leaves(net)}
    for path, old in before.items():
        np.testing.assert_array_equal(after[path], old)


def value(leaf):
    arrays = get_backend().snapshot({leaf.name: leaf.target}).arrays
    return arrays[leaf.name]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("built", [True, False])
def test_all_of_a_model_is_built_before_its_first_step(built, eager):
    def make():
        of = fitting.layers() if built else fitting.layers()[1:]
        return fitting.model(of=lambda: of, run_eagerly=eager, metrics=["mae"])

    saved = layout(stepped(make()))
    net = make()
    assert is_built(net) is built
    build(net, saved)
    assert is_built(net)
    assert net.optimizer.built
    assert differences(saved, leaves(net)) == []


class Stubborn(keras.Model):
    """Cannot be called on symbolic input, and makes its layers when it is called."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        if isinstance(x, keras.KerasTensor):
            raise TypeError("numbers only")
        return self.dense(x)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="others build before training")
def test_what_cannot_be_built_symbolically_is_built_by_a_step():
    def make():
        keras.utils.set_random_seed(1)
        net = Stubborn()
        net.compile("adam", "mse", run_eagerly=True)
        return net

    saved = layout(stepped(make()))
    net = make()
    build(net, saved)
    assert differences(saved, leaves(net)) == []


class TwoOptimizers(keras.Model):
    """Trains its head with an optimizer of its own, built at its first use."""

    def __init__(self):
        super().__init__()
        self.body, self.head = keras.layers.Dense(2), keras.layers.Dense(1)
        self.second = keras.optimizers.Adam(0.01)

    def call(self, x):
        return self.head(self.body(x))

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        x, y = (keras.ops.convert_to_tensor(each) for each in (x, y))
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            body, head = self.body.trainable_weights, self.head.trainable_weights
            gradients = tape.gradient(loss, [*body, *head])
        else:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            body, head = self.body.trainable_weights, self.head.trainable_weights
            self.zero_grad()
            loss.backward()
            gradients = [v.value.grad for v in (*body, *head)]
        with torch_without_gradients():
            self.optimizer.apply(gradients[:2], body)
            self.second.apply(gradients[2:], head)
        return {"loss": keras.ops.stop_gradient(loss)}


def torch_without_gradients():
    if BACKEND != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def two_optimizers():
    keras.utils.set_random_seed(1)
    net = TwoOptimizers()
    net.compile("adam", "mse", run_eagerly=True)
    return net


@pytest.mark.skipif(BACKEND == "jax", reason="its steps create no variables")
def test_an_optimizer_that_is_built_at_its_first_use_is_built(tmp_path):
    saved = layout(stepped(two_optimizers()))
    assert any(v["name"].startswith("extra.") for v in saved)
    # On torch Keras builds the first one for all weights.
    own = 6 if BACKEND == "tensorflow" else 10
    assert len([v for v in saved if v["name"].startswith("optimizer.")]) == own
    net = two_optimizers()
    build(net, saved)
    assert differences(saved, leaves(net)) == []


@pytest.mark.skipif(BACKEND == "jax", reason="its steps create no variables")
def test_a_run_with_an_optimizer_built_at_its_first_use_resumes_exactly(tmp_path):
    expected = two_optimizers()
    callbacks = [fitting.Interrupt()]
    logs = expected.fit(**fitting.arguments(callbacks=callbacks)).history
    fitting.interrupted(tmp_path, net=two_optimizers())
    fitting.other_seed()
    net = TwoOptimizers()
    net.compile("adam", "mse", run_eagerly=True)
    history = fitting.fit(net, tmp_path, callbacks=[fitting.Interrupt()])
    assert history.history == logs
    fitting.assert_equal(expected, net)
    for old, new in zip(expected.second.variables, net.second.variables, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(old.value), keras.ops.convert_to_numpy(new.value)
        )


def test_a_model_that_lacks_nothing_takes_no_step():
    net = stepped(fitting.model(of=lambda: fitting.layers(width=5)))
    saved = layout(stepped(fitting.model()))
    before = fitting.values(net)
    net.train_function = None  # any step would fail
    ensure_built(net, None, saved, get_backend())
    fitting.assert_equal(before, net)


def test_restoring_into_a_model_that_was_not_compiled_is_refused(tmp_path):
    fitting.fit(fitting.model(), tmp_path, epochs=1)
    net = keras.Sequential(fitting.layers())
    with pytest.raises(CheckpointMismatchError, match="only one has adam"):
        ResilientFit(net, checkpoint_dir=tmp_path).restore()


def test_all_variables_are_set_or_none():
    live = leaves_of([keras.Variable(np.zeros(2)) for _ in range(2)])
    for bad in (np.ones(3, "float32"), np.ones(2, "int32"), np.ones((2, 1), "float32")):
        tensors = {live[0].name: np.ones(2, "float32"), live[1].name: bad}
        layout = [leaf.to_json() for leaf in live]
        with pytest.raises(CheckpointMismatchError, match="does not fit"):
            assign(get_backend(), layout, live, tensors)
        for leaf in live:
            assert not np.any(keras.ops.convert_to_numpy(leaf.target.value))
