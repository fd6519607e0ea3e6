"""A resumed process compiles what the interrupted one had compiled, in its order.

What TensorFlow since Keras 3.16 and ``torch.compile`` make depends on the sizes of the
batches before. That the bytes depend on it show the scenarios ``convolution`` and
``torch_compile``.
"""

import functools
import json
import warnings

import keras
import numpy as np
import pytest
from support import fitting

from resilient import NotExactWarning
from resilient.backends import get_backend
from resilient.keras_internals import BACKEND, generation, traces
from resilient.state import retracing

traced = pytest.mark.skipif(
    BACKEND != "tensorflow" or not generation.traces_shapes,
    reason="Keras traces for no sizes",
)
compiled = pytest.mark.skipif(BACKEND != "torch", reason="it is PyTorch's compiler")
pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

X, Y = fitting.data()


def batches(x, *others):
    """A dataset of batches, the last one smaller, in another order in each epoch."""
    import tensorflow as tf

    sliced = tf.data.Dataset.from_tensor_slices((x, *others))
    return sliced.shuffle(30, seed=2).batch(fitting.BATCH)


def ragged():
    import tensorflow as tf

    rows = [np.full(1 + n % 3, n, "int32") for n in range(len(X))]
    return batches(tf.ragged.constant([list(row) for row in rows]), Y)


def sparse():
    import tensorflow as tf

    return batches(tf.sparse.from_dense(np.maximum(X, 0)), Y)


def lengths():
    """Sequences of 2 to 5 numbers, which have their own trace only if they come first.

    As of a model that is given batches of sequences of about one length.
    """

    class Sequences(keras.utils.PyDataset):
        num_batches = 6

        def __getitem__(self, number):
            length = 2 + number % 4
            return np.ones((4, length, 1), "float32"), Y[:4]

    return Sequences()


def pooled():
    return [
        keras.Input((None, 1)),
        keras.layers.Dense(2),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]


def embedded():
    return [
        keras.layers.Embedding(30, 2),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]


class Named(keras.Model):
    """Of inputs with names; its own step is not known before it is built."""

    def __init__(self, layers):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["a"]) + self.dense(inputs["b"])

    def train_step(self, data):
        return super().train_step(data)


def alone(x, **others):
    """Arguments of ``fit`` for data that comes in batches."""
    return {"x": x, "y": None, "batch_size": None, "shuffle": False} | others


PLAIN = {"of": fitting.layers}
KINDS = {
    "arrays": (PLAIN, lambda: {"validation_data": (X[:7], Y[:7])}),
    "weights": (PLAIN, lambda: {"sample_weight": np.ones(len(X))}),
    "names": ({"cls": Named}, lambda: {"x": {"a": X, "b": X}}),
    "a dataset": (PLAIN, lambda: alone(batches(X, Y))),
    "ragged": ({"of": embedded}, lambda: alone(ragged())),
    "sparse": (PLAIN, lambda: alone(sparse())),
    "lengths": ({"of": pooled}, lambda: alone(lengths())),
    "validated lengths": (
        {"of": pooled},
        lambda: alone(lengths(), validation_data=lengths(), validation_steps=2),
    ),
}


def made(making, seed=5):
    settings = {"run_eagerly": False, "jit_compile": False, "seed": seed}
    return fitting.model(**making | settings)


def in_last_checkpoint(directory):
    *_, last = sorted(directory.glob("step-*/run.json"))
    return json.loads(last.read_text())["traces"]


@traced
@pytest.mark.parametrize("at", [(0, 4), (1, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_traces_of_an_uninterrupted_run(kind, at, tmp_path):
    making, given = KINDS[kind]
    expected = made(making)
    expected.fit(**fitting.arguments(epochs=2, **given()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.interrupted(
            tmp_path, *at, net=made(making), save_freq=1, epochs=2, **given()
        )
        resumed = made(making, seed=99)
        callbacks = [fitting.Interrupt()]
        fitting.fit(
            resumed, tmp_path, callbacks=callbacks, save_freq=1, epochs=2, **given()
        )
    fitting.assert_equal(expected, resumed)
    assert traces.of(resumed) == traces.of(expected)
    assert len(traces.of(expected)["train_function"]) > 1


@traced
def test_what_cannot_be_traced_again_is_said(tmp_path, monkeypatch):
    making, _ = KINDS["arrays"]
    fitting.interrupted(tmp_path, net=made(making))
    monkeypatch.setattr(traces, "_traceable", lambda function: [])
    with pytest.warns(NotExactWarning, match="batch sizes seen before") as said:
        fitting.fit(made(making), tmp_path, callbacks=[fitting.Interrupt()])
    assert [w.category for w in said].count(NotExactWarning) == 1


@traced
def test_batches_of_another_number_of_tensors_are_said(tmp_path):
    """Of validation, which may change between attempts."""
    making, _ = KINDS["arrays"]
    given = {"validation_data": (X[:7], Y[:7]), "save_freq": 1}
    fitting.interrupted(tmp_path, 1, 3, net=made(making), **given)
    given["validation_data"] += (np.ones(7),)
    with pytest.warns(NotExactWarning, match="test_function"):
        fitting.fit(made(making), tmp_path, callbacks=[fitting.Interrupt()], **given)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow that traces")
def test_a_function_of_the_users_is_left_alone(tmp_path):
    """Of any arguments, and made without any."""
    import tensorflow as tf

    class Own(keras.Sequential):
        def make_train_function(self):
            @tf.function
            def step(x, y):
                return self.train_step((x, y))

            def train_function(iterator):
                return step(*next(iterator))

            self.train_function = train_function

    def own(seed=5):
        return made(PLAIN | {"cls": Own}, seed)

    expected = own()
    expected.fit(**fitting.arguments(callbacks=[fitting.Interrupt()]))
    fitting.interrupted(tmp_path, net=own(), save_freq=1)
    resumed = own(seed=99)
    fitting.fit(resumed, tmp_path, callbacks=[fitting.Interrupt()], save_freq=1)
    fitting.assert_equal(expected, resumed)


@traced
def test_what_is_not_traced_again_yet_stays_in_the_next_checkpoint(tmp_path):
    """Of validation, when a resumed run is interrupted before it comes to that."""
    making, given = KINDS["arrays"]
    fitting.interrupted(tmp_path, 1, 0, net=made(making), save_freq=1, **given())
    before = in_last_checkpoint(tmp_path)
    resumed = made(making, seed=99)
    fitting.interrupted(tmp_path, 1, 1, net=resumed, save_freq=1, **given())
    assert before == in_last_checkpoint(tmp_path)
    assert before.keys() == {"train_function", "test_function"}


@traced
def test_a_step_of_several_batches_is_traced_for_all_sizes(tmp_path):
    net = made(PLAIN | {"steps_per_execution": 2})
    fitting.fit(net, tmp_path, epochs=1)
    assert traces.of(net) == {}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow that traces")
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.long), 2])
def test_what_an_earlier_fit_was_traced_for_does_not_matter(steps, tmp_path):
    """An epoch of full batches is traced for their size, one of others for any."""

    settings = PLAIN | {"steps_per_execution": steps}
    callbacks = [fitting.Interrupt()]
    given = {"epochs": 2, "save_freq": steps, "batch_size": 2}

    def after_another(directory, seed=5):
        net = made(settings, seed)
        full = {"x": X[:16], "y": Y[:16], "epochs": 1}
        fitting.fit(net, directory, callbacks=callbacks, **full)
        return net

    expected = after_another(tmp_path / "a-first")
    fitting.fit(expected, tmp_path / "a-second", callbacks=callbacks, **given)
    first, second = tmp_path / "b-first", tmp_path / "b-second"
    fitting.interrupted(second, 0, 1, net=after_another(first), **given)
    resumed = after_another(first, seed=99)  # which trains nothing
    fitting.fit(resumed, second, callbacks=callbacks, **given)
    fitting.assert_equal(expected, resumed)
    of_both = [traces._shapes(net, "train_function") for net in (expected, resumed)]
    assert of_both[0] == of_both[1]


class Compiled:
    """A model whose step is no more than a sum, and the sizes that it was given."""

    def __init__(self):
        import torch

        self.net, self.called = fitting.model(), []

        @torch.compile(backend="eager")
        def step(batches):
            return batches[0][0].sum()

        def train_function(batches):
            self.called.append(len(batches[0][0]))
            kernel = self.net.get_layer(index=0).kernel
            kernel.assign_add(keras.ops.ones_like(kernel) * step(batches))

        self.net.train_function, self.net.jit_compile = train_function, True
        self.net.run_eagerly = False
        self.retracing = retracing.of(self.net, get_backend("torch"))

    def train(self, *sizes):
        for rows in sizes:
            batches = [(keras.ops.ones((rows, 3)), None)]
            self.retracing.before_step("train_function", batches)
            self.net.train_function(batches)


@compiled
def test_what_was_compiled_is_compiled_again_before_the_first_batch():
    first = Compiled()
    first.train(4, 4, 2, 4, 3, 5)
    traces = first.retracing.now()
    assert traces == {"train_function": [[[4, 3], None], [[2, 3], None]]}
    again = Compiled()
    again.retracing.expect(json.loads(json.dumps(traces)))
    assert again.retracing.now() == traces  # not compiled again yet
    kernel, random = again.net.get_layer(index=0).kernel, fitting.random_state()
    after = kernel.numpy() + 2 * 3
    again.train(2)
    assert again.called == [4, 2, 2]
    np.testing.assert_array_equal(kernel.numpy(), after)
    assert fitting.random_state() == random
    again.train(4, 3)
    assert traces == again.retracing.now()


@compiled
def test_batches_that_are_built_otherwise_are_said():
    other = Compiled()
    other.retracing.expect({"train_function": [[[4, 3]]]})
    with pytest.warns(NotExactWarning, match="batch sizes seen before"):
        other.train(4)


@pytest.fixture
def quick(monkeypatch):
    """Let ``torch.compile`` see what there is to compile, and not compile it."""
    import torch

    known = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", known)


def sizes(directory):
    """Of the last checkpoint: for how many rows each function was compiled."""
    return {
        name: [shapes[0][0] for shapes in each]
        for name, each in in_last_checkpoint(directory).items()
    }


def fit_compiled(directory, seed=5, **given):
    settings = {"jit_compile": True, "run_eagerly": False, "optimizer": "sgd"}
    net = fitting.model(of=plain, seed=seed, **settings)
    given |= {"validation_data": (X[:7], Y[:7]), "save_freq": 1, "epochs": 1}
    callbacks = [fitting.Interrupt(*given.pop("at", ()))]
    fitting.fit(net, directory, callbacks=callbacks, **given)
    return net


def plain():
    """Without a dropout, for which PyTorch compiles no step."""
    return [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)]


@compiled
@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_compiles_for_the_sizes_of_an_uninterrupted_run(quick, tmp_path):
    """Also where another model was compiled before, in this process only."""
    expected = fit_compiled(tmp_path / "whole")
    with pytest.raises(fitting.Interrupted):
        fit_compiled(tmp_path / "run", at=(0, 4))
    resumed = fit_compiled(tmp_path / "run", seed=99)
    fitting.assert_equal(expected, resumed)
    known = {"train_function": [4, 2], "test_function": [4, 3]}
    assert sizes(tmp_path / "whole") == sizes(tmp_path / "run") == known
