"""A setting that the script changes between attempts is refused, warned of or allowed.

Nothing else: no changed argument of ``compile``, of a layer or of a callback goes on
without a word, unless training may go on with it exactly as with the former one.
"""

import functools
import logging

import keras
import pytest
from support import fitting
from support.fitting import Interrupt

from resilient import CheckpointMismatchError, NotExactWarning

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

losses, optimizers = keras.losses, keras.optimizers
REFUSED, WARNED, LOGGED, ALLOWED = "refused", "warned", "logged", "allowed"
model, layers = fitting.model, fitting.layers


def with_layers(*, rate=0.3, **given):
    """A model with other arguments of its first layer."""

    def of():
        dense = keras.layers.Dense(2, **{"activation": "relu"} | given)
        return [*layers(rate=rate)[:1], dense, *layers(rate=rate)[2:]]

    return model(of=of)


def two_outputs(weights=None, second="mae"):
    """A model with a dict of losses."""
    keras.utils.set_random_seed(5)
    x = keras.Input((3,))
    names = {name: keras.layers.Dense(1, name=name)(x) for name in ("a", "b")}
    net = keras.Model(x, names)
    net.compile("adam", {"a": "mse", "b": second}, loss_weights=weights)
    return net


def scaled(**given):
    return model(optimizer=optimizers.LossScaleOptimizer(optimizers.Adam(**given)))


def several(second=optimizers.SGD, rate=0.1):
    inner = optimizers.Adam(), second(rate)
    chosen = functools.partial(_by_kind, inner)
    net = model(optimizer=optimizers.MultiOptimizer(chosen))
    net.optimizer.build(net.trainable_variables)
    return net


def _by_kind(inner, variable):
    return inner["bias" in variable.path]


def own_loss(scale, power=2):
    def loss(y_true, y_pred):
        return scale * keras.ops.mean(keras.ops.abs(y_true - y_pred) ** power)

    return model(loss=loss)


def other_body(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred)) + 1.0


def schedule(rate=0.1, steps=9):
    return model(
        optimizer=optimizers.SGD(
            optimizers.schedules.ExponentialDecay(rate, steps, 0.5)
        )
    )


def functional(swapped=False, factor=2.0):
    keras.utils.set_random_seed(5)
    x = keras.Input((3,))
    a, b = keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)
    pair = [a, factor * b]
    net = keras.Model(x, keras.layers.Subtract()(pair[::-1] if swapped else pair))
    net.compile("adam", "mse")
    return net


SETTINGS = {"power": 2.0}


def loss_of_globals(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** SETTINGS["power"])


def with_global(power=2.0):
    SETTINGS["power"] = power
    return model(loss=loss_of_globals)


class Scaled(losses.Loss):
    """A loss that keeps its argument under another name."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.doubled = 2 * scale

    def call(self, y_true, y_pred):
        return self.doubled * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    def get_config(self):
        return {"scale": self.doubled / 2}


class Powers:
    """Something with a method that is a loss."""

    def __init__(self, power=2):
        self.power = power

    def loss(self, y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** self.power)


def first_body():
    class Loss(losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    return model(loss=Loss())


def second_body():
    class Loss(losses.Loss):
        def call(self, y_true, y_pred):
            return 2.0 * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    return model(loss=Loss())


def metric_that_knows(what):
    def metric(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred) if what else 0.0

    return model(metrics=[metric])


def clipped(most=1.0, regularizer=None):
    keras.utils.set_random_seed(5)
    x = keras.Input((3,))
    inside = keras.layers.Dense(2, kernel_regularizer=regularizer)(x)
    net = keras.Model(x, keras.layers.Dense(1)(keras.ops.clip(inside, -1.0, most)))
    net.compile("adam", "mse")
    return net


def stopping(**given):
    return [keras.callbacks.EarlyStopping("loss", **{"patience": 5} | given)]


METRIC = keras.metrics.BinaryAccuracy
CHANGES = {
    # of the loss
    "another loss": (model, lambda: model(loss="mae"), WARNED),
    "another object": (
        lambda: model(loss=losses.MeanSquaredError()),
        lambda: model(loss=losses.MeanAbsoluteError()),
        WARNED,
    ),
    "Huber's delta": (
        lambda: model(loss=losses.Huber(1.0)),
        lambda: model(loss=losses.Huber(2.0)),
        WARNED,
    ),
    "a loss in a dict": (two_outputs, lambda: two_outputs(second="mse"), WARNED),
    "loss weights": (
        lambda: two_outputs({"a": 1.0, "b": 0.5}),
        lambda: two_outputs({"a": 1.0, "b": 0.25}),
        WARNED,
    ),
    "a closure": (lambda: own_loss(1.0), lambda: own_loss(2.0), WARNED),
    "a default": (
        lambda: model(loss=functools.partial(losses.huber, delta=1.0)),
        lambda: model(loss=functools.partial(losses.huber, delta=2.0)),
        WARNED,
    ),
    "another body": (lambda: own_loss(1.0), lambda: model(loss=other_body), WARNED),
    "a global": (with_global, lambda: with_global(3.0), WARNED),
    "a config": (
        lambda: model(loss=Scaled()),
        lambda: model(loss=Scaled(2.0)),
        WARNED,
    ),
    "a method's object": (
        lambda: model(loss=Powers().loss),
        lambda: model(loss=Powers(4).loss),
        WARNED,
    ),
    "the body of a class": (first_body, second_body, WARNED),
    # of the optimizer
    "beta": (
        lambda: model(optimizer=optimizers.Adam()),
        lambda: model(optimizer=optimizers.Adam(beta_1=0.8)),
        WARNED,
    ),
    "inner beta": (scaled, lambda: scaled(beta_1=0.8), WARNED),
    "inner rate": (scaled, lambda: scaled(learning_rate=0.5), LOGGED),
    "the rate": (model, lambda: model(optimizer=optimizers.Adam(0.5)), LOGGED),
    "one of several": (several, lambda: several(optimizers.RMSprop), REFUSED),
    "the rate of one": (several, lambda: several(rate=0.2), LOGGED),
    "decay": (schedule, lambda: schedule(steps=5), WARNED),
    "the first rate": (schedule, lambda: schedule(rate=0.2), WARNED),
    # of metrics
    "a threshold": (
        lambda: model(metrics=[METRIC(threshold=0.5)]),
        lambda: model(metrics=[METRIC(threshold=0.6)]),
        REFUSED,
    ),
    "another metric": (
        lambda: model(metrics=["mae"]),
        lambda: model(metrics=["mse"]),
        REFUSED,
    ),
    "what a metric knows": (
        lambda: metric_that_knows(1.0),
        lambda: metric_that_knows(2.0),
        WARNED,
    ),
    "where a metric writes": (
        lambda: metric_that_knows("runs/1"),
        lambda: metric_that_knows("runs/2"),
        ALLOWED,
    ),
    # of layers
    "dropout": (with_layers, lambda: with_layers(rate=0.4), WARNED),
    "a regularizer": (
        lambda: with_layers(kernel_regularizer=keras.regularizers.L2(0.1)),
        lambda: with_layers(kernel_regularizer=keras.regularizers.L2(0.2)),
        WARNED,
    ),
    "a constraint": (
        lambda: with_layers(kernel_constraint=keras.constraints.MaxNorm(1)),
        lambda: with_layers(kernel_constraint=keras.constraints.MaxNorm(2)),
        WARNED,
    ),
    "an activation": (with_layers, lambda: with_layers(activation="tanh"), REFUSED),
    "an initializer": (
        with_layers,
        lambda: with_layers(kernel_initializer="he_normal"),
        ALLOWED,
    ),
    "inputs": (functional, lambda: functional(swapped=True), REFUSED),
    "an operation": (clipped, lambda: clipped(2.0), REFUSED),
    "a constant": (functional, lambda: functional(factor=3.0), REFUSED),
    # of compile
    "accumulation": (
        lambda: model(optimizer=optimizers.SGD(0.1)),
        lambda: model(optimizer=optimizers.SGD(0.1, clipvalue=1.0)),
        WARNED,
    ),
}
CALLBACKS = {
    "patience": (stopping, lambda: stopping(patience=6)),
    "min_delta": (stopping, lambda: stopping(min_delta=0.1)),
    "mode": (stopping, lambda: stopping(mode="min")),
    "factor": tuple(
        functools.partial(lambda x: [keras.callbacks.ReduceLROnPlateau("loss", x)], x)
        for x in (0.5, 0.2)
    ),
}


def data():
    x, y = fitting.data()
    return {"x": x, "y": y}


def of_two():
    x, y = fitting.data()
    return {"x": x, "y": {"a": y, "b": y}}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_not_silent(name, tmp_path, caplog):
    before, after, expected = CHANGES[name]
    given = of_two() if before is two_outputs or "weights" in name else data()
    fitting.interrupted(tmp_path, net=before(), **given)
    given |= {"callbacks": [Interrupt()], "save_freq": 4}
    if expected == REFUSED:
        with pytest.raises(CheckpointMismatchError, match="Nothing"):
            fitting.fit(after(), tmp_path, **given)
    elif expected == WARNED:
        with pytest.warns(NotExactWarning, match="these settings changed") as found:
            fitting.fit(after(), tmp_path, **given)
        (text,) = [str(w.message) for w in found if w.category is NotExactWarning]
        assert len(text.splitlines()) == 2
    else:
        with caplog.at_level(logging.WARNING, "resilient"):
            fitting.fit(after(), tmp_path, **given)
        rates = [line for line in caplog.messages if "learning rate" in line]
        assert len(rates) == (expected == LOGGED)


@pytest.mark.parametrize("name", CHANGES)
def test_what_did_not_change_goes_on_in_silence(name, tmp_path, caplog):
    before, _, _ = CHANGES[name]
    given = of_two() if before is two_outputs or "weights" in name else data()
    fitting.interrupted(tmp_path, net=before(), **given)
    with caplog.at_level(logging.WARNING, "resilient"):
        given |= {"callbacks": [Interrupt()], "save_freq": 4}
        fitting.fit(before(), tmp_path, **given)  # warnings are errors
    assert not caplog.messages


class WithoutConfig(keras.regularizers.Regularizer):
    def __call__(self, weights):
        return keras.ops.sum(weights**2)


def test_connections_that_cannot_be_compared_are_named(tmp_path):
    """Keras makes no config of a model if anything in it has none."""
    fitting.interrupted(tmp_path, net=clipped(regularizer=WithoutConfig()))
    with pytest.warns(NotExactWarning, match="how the layers are connected"):
        fitting.fit(
            clipped(regularizer=WithoutConfig()),
            tmp_path,
            callbacks=[Interrupt()],
            save_freq=4,
        )


@pytest.mark.parametrize("name", CALLBACKS)
def test_settings_of_callbacks_may_change(name, tmp_path):
    before, after = CALLBACKS[name]
    fitting.interrupted(tmp_path, callbacks=before())
    (callback,) = after()
    chosen = dict(vars(callback))
    fitting.fit(model(), tmp_path, callbacks=[Interrupt(), callback], save_freq=4)
    now, then = getattr(callback, name), chosen[name]
    assert now == then or abs(now) == abs(then)  # Keras sets the sign by the mode
