"""What a script says otherwise than before of its model, or in ``compile``."""

import functools

import keras
from support.fitting import layers

from .scripts import Fit, arrays, model

losses, optimizers = keras.losses, keras.optimizers
REFUSED, WARNED, LOGGED, ALLOWED = "refused", "warned", "logged", "allowed"


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


def regularized(factor):
    return with_layers(kernel_regularizer=keras.regularizers.L2(factor))


def constrained(most):
    return with_layers(kernel_constraint=keras.constraints.MaxNorm(most))


class WithoutConfig(keras.regularizers.Regularizer):
    """Keras makes no config of a model if anything in it has none."""

    def __call__(self, weights):
        return keras.ops.sum(weights**2)


def of_two():
    given = arrays()
    return {"x": given["x"], "y": {"a": given["y"], "b": given["y"]}}


METRIC = keras.metrics.BinaryAccuracy
# What is killed.
BASES = {
    "fit": Fit(model),
    "an object": Fit(lambda: model(loss=losses.MeanSquaredError())),
    "Huber": Fit(lambda: model(loss=losses.Huber(1.0))),
    "a dict": Fit(two_outputs, of_two),
    "a dict with weights": Fit(lambda: two_outputs({"a": 1.0, "b": 0.5}), of_two),
    "a closure": Fit(lambda: own_loss(1.0)),
    "a partial": Fit(lambda: model(loss=functools.partial(losses.huber, delta=1.0))),
    "a global": Fit(with_global),
    "a config": Fit(lambda: model(loss=Scaled())),
    "a method": Fit(lambda: model(loss=Powers().loss)),
    "a class": Fit(first_body),
    "SGD": Fit(lambda: model(optimizer=optimizers.SGD(0.1))),
    "scaled": Fit(scaled),
    "several": Fit(several),
    "a schedule": Fit(schedule),
    "a threshold": Fit(lambda: model(metrics=[METRIC(threshold=0.5)])),
    "a metric": Fit(lambda: model(metrics=["mae"])),
    "a metric that knows": Fit(lambda: metric_that_knows(1.0)),
    "a metric that writes": Fit(lambda: metric_that_knows("runs/1")),
    "layers": Fit(with_layers),
    "a regularizer": Fit(lambda: regularized(0.1)),
    "a constraint": Fit(lambda: constrained(1)),
    "functional": Fit(functional),
    "an operation": Fit(clipped),
    "without a config": Fit(lambda: clipped(regularizer=WithoutConfig())),
}
# What goes on then, and with what outcome.
CHANGES = {
    "another loss": ("fit", Fit(lambda: model(loss="mae")), WARNED),
    "another object": (
        "an object",
        Fit(lambda: model(loss=losses.MeanAbsoluteError())),
        WARNED,
    ),
    "Huber's delta": ("Huber", Fit(lambda: model(loss=losses.Huber(2.0))), WARNED),
    "a loss in a dict": (
        "a dict",
        Fit(lambda: two_outputs(second="mse"), of_two),
        WARNED,
    ),
    "loss weights": (
        "a dict with weights",
        Fit(lambda: two_outputs({"a": 1.0, "b": 0.25}), of_two),
        WARNED,
    ),
    "a closure": ("a closure", Fit(lambda: own_loss(2.0)), WARNED),
    "a default": (
        "a partial",
        Fit(lambda: model(loss=functools.partial(losses.huber, delta=2.0))),
        WARNED,
    ),
    "another body": ("a closure", Fit(lambda: model(loss=other_body)), WARNED),
    "a global": ("a global", Fit(lambda: with_global(3.0)), WARNED),
    "a config": ("a config", Fit(lambda: model(loss=Scaled(2.0))), WARNED),
    "a method's object": ("a method", Fit(lambda: model(loss=Powers(4).loss)), WARNED),
    "the body of a class": ("a class", Fit(second_body), WARNED),
    "beta": ("fit", Fit(lambda: model(optimizer=optimizers.Adam(beta_1=0.8))), WARNED),
    "inner beta": ("scaled", Fit(lambda: scaled(beta_1=0.8)), WARNED),
    "inner rate": ("scaled", Fit(lambda: scaled(learning_rate=0.5)), LOGGED),
    "averages": (
        "fit",
        Fit(lambda: model(optimizer=optimizers.Adam(use_ema=True))),
        REFUSED,
    ),
    "the rate": ("fit", Fit(lambda: model(optimizer=optimizers.Adam(0.5))), LOGGED),
    "one of several": ("several", Fit(lambda: several(optimizers.RMSprop)), REFUSED),
    "the rate of one": ("several", Fit(lambda: several(rate=0.2)), LOGGED),
    "decay": ("a schedule", Fit(lambda: schedule(steps=5)), WARNED),
    "the first rate": ("a schedule", Fit(lambda: schedule(rate=0.2)), WARNED),
    "clipping": (
        "SGD",
        Fit(lambda: model(optimizer=optimizers.SGD(0.1, clipvalue=1e-3))),
        WARNED,
    ),
    "a threshold": (
        "a threshold",
        Fit(lambda: model(metrics=[METRIC(threshold=0.6)])),
        REFUSED,
    ),
    "another metric": ("a metric", Fit(lambda: model(metrics=["mse"])), REFUSED),
    "what a metric knows": (
        "a metric that knows",
        Fit(lambda: metric_that_knows(2.0)),
        WARNED,
    ),
    "where a metric writes": (
        "a metric that writes",
        Fit(lambda: metric_that_knows("runs/2")),
        ALLOWED,
    ),
    "dropout": ("layers", Fit(lambda: with_layers(rate=0.9)), WARNED),
    "a regularizer": ("a regularizer", Fit(lambda: regularized(0.2)), WARNED),
    "a constraint": ("a constraint", Fit(lambda: constrained(0.1)), WARNED),
    "an activation": ("layers", Fit(lambda: with_layers(activation="tanh")), REFUSED),
    "an initializer": (
        "layers",
        Fit(lambda: with_layers(kernel_initializer="he_normal")),
        ALLOWED,
    ),
    "inputs": ("functional", Fit(lambda: functional(swapped=True)), REFUSED),
    "an operation": ("an operation", Fit(lambda: clipped(2.0)), REFUSED),
    "a constant": ("functional", Fit(lambda: functional(factor=3.0)), REFUSED),
    "without a config": (
        "without a config",
        Fit(lambda: clipped(2.0, regularizer=WithoutConfig())),
        REFUSED,
    ),
}
# Warned of, though weights are trained as before.
HARMLESS = {"what a metric knows"}
