"""A loop's Keras models, layer by layer: another function is refused, and named."""

import keras
import numpy as np
import pytest

import resilient
from resilient import CheckpointMismatchError, NotExactWarning

pytestmark = [
    pytest.mark.spread,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

X = np.ones((2, 3), "float32")


def net(activation="relu", rate=0.3, units=2, more=(), cls=keras.Sequential):
    layers = keras.layers
    dense = layers.Dense(units, activation=activation)
    return cls([keras.Input((3,)), dense, layers.Dropout(rate), *more, layers.Dense(1)])


class Other(keras.Sequential):
    """Which may call its layers in another way."""


class Late(keras.Model):
    """Built when it is called."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.dense = keras.layers.Dense(2, activation=activation)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


def run_on(directory, **objects):
    return resilient.Run(directory, verbose=0, **objects)


def left(directory, **objects):
    with run_on(directory, **objects) as run:
        for each in objects.values():
            each(X)
        run.advance()


def functional(turned):
    x = keras.Input((3,))
    y = keras.layers.Dense(3)(x)
    return keras.Model(x, keras.layers.Subtract()([y, x] if turned else [x, y]))


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("made", "changed", "words"),
    [
        (net, lambda: net("tanh"), "net: layer 1 (Dense).activation: the checkpoint "),
        (
            net,
            lambda: net(more=[keras.layers.ReLU()]),
            "net: layer 3: the checkpoint has None, this run has 'ReLU'",
        ),
        (net, lambda: net(cls=Other), "net: model: the checkpoint has 'Sequential'"),
        (net, lambda: net(units=5), "net: layer 1 (Dense).units: the checkpoint has 2"),
        (Late, lambda: Late("tanh"), "net: layer 0 (Dense).activation: the checkpoint"),
        (
            lambda: keras.layers.Dense(2),
            lambda: keras.layers.Dense(2, activation="elu"),
            "net: layer 0 (Dense).activation: the checkpoint has 'linear'",
        ),
        (lambda: functional(False), lambda: functional(True), "net: connections of "),
    ],
)
def test_another_function_is_refused(tmp_path, made, changed, words):
    left(tmp_path, net=made())
    other = changed()
    before = [np.array(w) for w in other.get_weights()]
    with pytest.raises(CheckpointMismatchError) as found, run_on(tmp_path, net=other):
        pass
    assert words in str(found.value)
    for old, new in zip(before, other.get_weights(), strict=False):
        assert np.array_equal(old, new)
    with run_on(tmp_path, net=made()) as again:
        assert again.step == 1


def test_what_only_matters_in_training_is_said_once_for_each_model(tmp_path):
    left(tmp_path, one=net(), two=net())
    with (
        pytest.warns(NotExactWarning, match=r"one: layer 2 \(Dropout\)\.rate") as found,
        run_on(tmp_path, one=net(rate=0.5), two=net()),
    ):
        pass
    assert len(found) == 1
    assert "two: " not in str(found[0].message)


def test_what_a_loop_does_to_its_model_is_no_change_of_the_script(tmp_path):
    """It is what the script made that counts, also in the second of two loops."""

    def train(epochs):
        model = net()
        run = run_on(tmp_path, net=model)
        for last in (1, epochs):
            for _ in run.loop((X,), epochs=last, batch_size=1):
                model.layers[0].activation = keras.activations.tanh
        return run

    with pytest.warns(NotExactWarning, match=r"net: layer 1 \(Dense\)\.activation"):
        assert train(2).step == 4
    with pytest.warns(NotExactWarning, match=r"net: layer 1 \(Dense\)\.activation"):
        assert train(3).step == 6


def test_other_settings_of_training_are_said_once(tmp_path):
    """Of an optimizer of the loop, and of a model's own, with its loss."""

    def made(momentum=0.5, loss="mse", beta=0.9, optimizer=keras.optimizers.Adam):
        model, own = net(), optimizer(beta_1=beta)
        model.compile(keras.optimizers.SGD(momentum=momentum), loss)
        for each in (model.optimizer, own):
            each.build(model.trainable_variables)
        return {"net": model, "own": own}

    with run_on(tmp_path, **made()) as run:
        run.advance()
    told = pytest.warns(NotExactWarning, match="these settings changed")
    with told as found, run_on(tmp_path, **made(0.6, "mae", 0.8)):
        pass
    assert len(found) == 1
    lines = [line.strip() for line in str(found[0].message).splitlines()[1:]]
    assert lines == [
        "net: loss: the checkpoint has 'mse', this run has 'mae'",
        "net: optimizer.momentum: the checkpoint has 0.5, this run has 0.6",
        "own: optimizer.beta_1: the checkpoint has 0.9, this run has 0.8",
    ]
    other = made(optimizer=keras.optimizers.Nadam, beta=0.8)
    run = resilient.Run(tmp_path, verbose=0, allow={"optimizer"}, **other)
    with pytest.warns(NotExactWarning) as found, run:
        pass
    assert "beta_1" not in "".join(str(each.message) for each in found)
