"""A run small enough to be made dozens of times, interrupted, and compared."""

import random

import keras
import numpy as np

import resilient
from resilient.backends import get_backend
from resilient.state.rng import capture

SAMPLES, BATCH = 22, 4
STEPS = 6  # batches an epoch, the last one smaller


class Interrupted(Exception):
    """What interrupts a run in these tests."""


class Interrupt(keras.callbacks.Callback):
    """Raises at the end of a batch, or of an epoch where ``batch`` is None.

    Keeps the batches that it saw in this process, as (epoch, batch).
    """

    def __init__(self, epoch=None, batch=None):
        super().__init__()
        self._at = (epoch, batch)
        self._seen = []

    @property
    def seen(self):
        return [tuple(pair) for pair in self._seen]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._seen.append((self._epoch, batch))
        if self._at == (self._epoch, batch):
            raise Interrupted

    def on_epoch_end(self, epoch, logs=None):
        if self._at == (epoch, None):
            raise Interrupted


class Do(keras.callbacks.Callback):
    """Calls a function at the end of a batch, or of an epoch if ``batch`` is None."""

    def __init__(self, function, epoch=1, batch=2):
        super().__init__()
        self._function, self._at = function, (epoch, batch)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._at == (self._epoch, batch):
            self._function()

    def on_epoch_end(self, epoch, logs=None):
        if self._at == (epoch, None):
            self._function()


def data(samples=SAMPLES, seed=0):
    """``x`` and ``y`` of a regression."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(samples, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def layers(width=2, rate=0.3):
    """The layers of ``model``, new ones."""
    return [
        keras.Input((3,)),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dropout(rate),
        keras.layers.Dense(1),
    ]


def model(*, of=None, cls=keras.Sequential, optimizer="adam", seed=5, **compiling):
    """A compiled model.

    Eager where nothing else is asked for, since tracing takes TensorFlow longer than
    training does here.
    """
    keras.utils.set_random_seed(seed)
    net = cls(of() if of else layers())
    net.compile(optimizer, **{"loss": "mse", "run_eagerly": True} | compiling)
    return net


def arguments(**given):
    """Arguments of ``fit``: three epochs on ``data``, without output."""
    x, y = data()
    defaults = {"x": x, "y": y, "epochs": 3, "batch_size": BATCH, "verbose": 0}
    return defaults | given


def fit(net, directory, **given):
    """``resilient.fit`` with ``arguments``."""
    return resilient.fit(net, checkpoint_dir=directory, **arguments(**given))


def interrupted(directory, epoch=1, batch=2, *, net=None, **given):
    """Leave in ``directory`` what a run leaves that was interrupted there."""
    callbacks = [Interrupt(epoch, batch), *given.pop("callbacks", ())]
    net = net or model()
    try:
        fit(net, directory, callbacks=callbacks, **{"save_freq": 4} | given)
    except Interrupted:
        return net
    raise AssertionError("the run was to be interrupted, and it was not")


def other_seed():
    """Make sure that what is equal does not come from the script's seed."""
    keras.utils.set_random_seed(random.SystemRandom().randrange(2**31))


def values(net):
    """Every variable of a model, its optimizer and its metrics, as arrays."""
    groups = (
        net.trainable_variables,
        net.non_trainable_variables,
        net.optimizer.variables,
        net.metrics_variables,
    )
    return [
        np.array(keras.ops.convert_to_numpy(v.value)) for group in groups for v in group
    ]


def assert_equal(expected, actual):
    """Both models (or their ``values``) have the same bytes in all variables."""
    theirs, ours = (v if isinstance(v, list) else values(v) for v in (expected, actual))
    assert [v.shape for v in theirs] == [v.shape for v in ours]
    for old, new in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(old, new)


def random_state():
    """The state of every global random number generator, comparable."""
    return repr(capture(get_backend()))


def steps(directory):
    """Steps of the committed checkpoints."""
    store = resilient.ResilientFit(None, checkpoint_dir=directory)
    return [checkpoint.step for checkpoint in store.checkpoints]
