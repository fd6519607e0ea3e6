"""Runs that end between two saves and go on, and what their witnesses found."""

import itertools
import random
import sys
import types

import keras
import numpy as np
from support.fitting import Interrupt, Interrupted, fit, model, other_seed

from resilient.telemetry.events import read_events

SAVED, LAST = 5, 9  # steps; step 7 is the first one of the second epoch


def found(directory):
    """What was said: ("repeated", how many batches), ("not repeated", which step)."""
    return [
        (each["event"], each["repeated" if each["event"] == "repeated" else "step"])
        for each in read_events(directory)
        if each["event"] in ("repeated", "not repeated")
    ]


def attempt(
    directory, until=(), *, seed, compiling=None, wrap=lambda them, _: them, **given
):
    """A fit with one more callback if it is watched; None if one interrupts it."""
    net = model(seed=seed, **compiling or {})
    watched = [Interrupt(*until)] if given.pop("watched", True) else []
    callbacks = wrap([*watched, *given.pop("callbacks", ())], net)
    given = {"save_freq": SAVED} | given
    try:
        return fit(net, directory, callbacks=callbacks, **given)
    except Interrupted:
        return None


def left(directory, until=(1, 2), **given):
    """A run that was interrupted: if nothing else is said, see above."""
    assert attempt(directory, until, seed=5, **given) is None


def resume(directory, **given):
    """The run goes on, with another seed; to its end, if nothing else is said."""
    other_seed()
    return attempt(directory, **{"seed": 7, "save_freq": 100} | given)


def loss_times(number):
    """A loss times what a function returns at each step, which nobody saves."""

    def loss(y, predicted):
        return keras.ops.mean(keras.ops.square(y - predicted)) * number()

    return {"loss": loss}


def hidden(**state):
    """State that no walk over objects reaches: it is a module's of Python's own."""
    sys.of_a_test = types.SimpleNamespace(**state)


def counting():
    """A loss that grows with a number that nobody saves."""
    hidden(calls=0)

    def number():
        sys.of_a_test.calls += 1
        return 1 + sys.of_a_test.calls / 100

    return loss_times(number)


def drawing():
    """A loss with numbers of a generator that nobody saves."""
    hidden(generator=random.Random(3))
    return loss_times(lambda: 1 + sys.of_a_test.generator.random())


def rounding(share):
    """A loss that is as far off as sums in another order are: nothing shows why."""
    sys.share_of_a_test = share
    return loss_times(lambda: 1 + sys.share_of_a_test)


class Saved(keras.callbacks.Callback):
    """A callback that says what is to be saved of it: nothing."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Counts(Saved):
    """Changes a weight when an epoch begins, by a number that nobody saves."""

    batches = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1

    def on_epoch_begin(self, epoch, logs=None):
        weight = self.model.trainable_variables[0]
        weight.assign(weight.value * (1 + self.batches / 100))


class Reads(Saved):
    """Reads the weights at the end of each batch, for which JAX writes them back."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.get_weights()


class Flips(Saved):
    """Flips the lowest bit of a weight right before the first batch, if asked to."""

    def __init__(self, flips):
        super().__init__()
        self._flips = flips

    def on_train_batch_begin(self, batch, logs=None):
        if self._flips:
            weight = self.model.trainable_variables[0]
            value = np.array(keras.ops.convert_to_numpy(weight.value))
            value.view(np.uint32).flat[0] ^= 1
            weight.assign(value)
        self._flips = False


class BeforeBatch(Saved):
    """Calls a function before the fourth batch of the second epoch."""

    def __init__(self, function=lambda: None):
        super().__init__()
        self._function = function

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self._epoch, batch) == (1, 3):
            self._function()


def interrupt():
    raise Interrupted


def drawn():
    """A PyDataset with other rows in each epoch, which no seed gives."""
    source, ends = random.SystemRandom(), itertools.count()
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    hidden(rows=rows, ends=ends)

    class Drawn(keras.utils.PyDataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            rows = sys.of_a_test.rows
            return rows * (index + 1), rows[:, :1]

        def on_epoch_end(self):
            # The first one ends what Keras builds the model with.
            if next(sys.of_a_test.ends):
                sys.of_a_test.rows[...] = source.random()

    return {"x": Drawn(), "y": None, "batch_size": None}
