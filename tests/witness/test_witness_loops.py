"""A loop by hand is witnessed as a fit is: what it logs, its batches, its objects."""

import itertools

import keras
import numpy as np
import pytest
from interrupts import drawn, found
from support.fitting import Interrupted, model

import resilient
from resilient import DataNotResumableError, NotExactError, NotExactWarning

pytestmark = [
    pytest.mark.waits,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def loop(
    directory, stop=None, *, scale=lambda: 1, log=None, data=None, epochs=4, **given
):
    """Trains on batches times what ``scale`` returns."""
    net = model(seed=5 if stop else 7)
    run = resilient.Run(directory, net=net, **{"save_freq": 5, "verbose": 0} | given)
    data = (X, X[:, :1]) if data is None else data
    size = 2 if isinstance(data, tuple) else None
    for _, step, (x, y) in run.loop(data, epochs=epochs, batch_size=size):
        if step == stop:
            break
        loss = net.train_on_batch(x, y * scale())
        (log or (lambda run, loss: run.log(loss=loss)))(run, loss)
    return run


def times(run, loss):
    run.log(seconds=next(NUMBERS), loss=loss)
    run.log(loss=next(NUMBERS))  # the second one of a step: that of an evaluation, say


def scalar(run, loss):
    run.log(loss=keras.ops.convert_to_tensor(loss))


NUMBERS = itertools.count(0.5)
LOGS = {"float": None, "scalar": scalar, "times": times, "none": lambda *_: None}


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.spread
def test_what_a_loop_does_again_is_counted(tmp_path, kind, capfd):
    loop(tmp_path, 9, log=LOGS[kind])
    loop(tmp_path, log=LOGS[kind], verbose=1)
    assert found(tmp_path) == [("repeated", 4)]
    assert "The 4 batches after step 5 repeated bit for bit." in capfd.readouterr().out


@pytest.mark.parametrize(
    "kind",
    [pytest.param(n, marks=[pytest.mark.spread] * (n != "scalar")) for n in LOGS],
)
def test_what_a_loop_lost_is_named(tmp_path, kind):
    """By the loss, or by the weights alone."""

    def train(stop=None, **given):
        counter = itertools.count(1)
        loop(tmp_path, stop, log=LOGS[kind], scale=lambda: next(counter), **given)

    train(9)
    with pytest.raises(NotExactError, match="batch 1 of the 4"):
        train(save_freq=1, keep=1, on_inexact="raise")
    assert [each.step for each in resilient.Run(tmp_path).checkpoints] == [5]
    with pytest.warns(NotExactWarning, match="batch 1 of the "):
        train()
    assert found(tmp_path) == 2 * [("not repeated", 6)]


def test_batches_of_a_loop_are_seen_on_each_backend(tmp_path):
    given = {"save_freq": 11, "epochs": 3}
    loop(tmp_path, 15, data=drawn()["x"], **given)
    with pytest.raises(DataNotResumableError, match="batch 2 of the 4"):
        loop(tmp_path, data=drawn()["x"], **given)
    with pytest.warns(NotExactWarning, match="data that is not as before"):
        loop(tmp_path, data=drawn()["x"], **given, on_data_change="warn")


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="trees are JAX's")
def test_a_tree_whose_values_each_step_replaces_is_compared(tmp_path):
    """As it is then, however long ago it was saved."""
    import jax.numpy as jnp

    def train(stop=None, lost=0.0, **given):
        run = resilient.Run(tmp_path, state={"w": jnp.zeros(3)}, verbose=0, **given)
        for _, step, x in run.loop(X, epochs=4, batch_size=2):
            if step == stop:
                break
            run.state = {"w": run.state["w"] + x.mean() + lost}

    train(9, save_freq=5)
    train(14, save_freq=3)  # at other steps than the killed attempt
    with pytest.warns(NotExactWarning, match="batch 1 of the "):
        train(lost=1e-3, save_freq=100)
    assert found(tmp_path) == [("repeated", 4), ("not repeated", 13)]


@pytest.mark.spread
def test_what_is_trained_after_going_back_on_purpose_is_not_compared(tmp_path):
    """In a `with` block: with another learning rate, say."""
    net = model()
    with resilient.Run(tmp_path, net=net, save_freq=5, verbose=0) as run:
        for scale in (1.0, 2.0):
            for _ in range(4 if scale > 1 else 9):
                run.log(loss=net.train_on_batch(X, X[:, :1] * scale))
                run.advance()
            if scale == 1:
                assert run.restore().step == 5
    assert found(tmp_path) == []


@pytest.mark.spread
def test_batches_of_a_second_loop_are_compared(tmp_path):
    def train(stop=None):
        net = model(seed=5 if stop else 7)
        with resilient.Run(tmp_path, net=net, save_freq=5, verbose=0) as run:
            for epochs in (1, 4):
                for _, step, (x, y) in run.loop((X, X), epochs=epochs, batch_size=2):
                    if step == stop:
                        raise Interrupted
                    run.log(loss=net.train_on_batch(x, y[:, :1]))

    with pytest.raises(Interrupted):
        train(8)
    train()
    assert found(tmp_path) == [("repeated", 3)]


@pytest.mark.spread
def test_counted_steps_without_a_loop_of_ours_are_compared(tmp_path):
    def train(steps):
        net = model(seed=steps)
        with resilient.Run(tmp_path, net=net, save_freq=5, verbose=0) as run:
            while run.step < steps:
                run.log(loss=net.train_on_batch(X, X[:, :1]))
                run.advance()
            if steps == 9:
                raise Interrupted

    with pytest.raises(Interrupted):
        train(9)
    train(12)
    assert found(tmp_path) == [("repeated", 4)]
