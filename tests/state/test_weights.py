"""Weights and optimizer of a checkpoint, given to a model outside of ``fit``."""

from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting

from resilient import CheckpointMismatchError, ResilientFit
from resilient.backends import get_backend
from resilient.state import variables, weights

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def trained(seed=5):
    net = fitting.model(seed=seed)
    net.train_on_batch(*fitting.data(4))
    return net


def saved_of(net):
    """What a checkpoint has of a model: the list of variables and the tensors."""
    live = weights.ready(net)
    arrays = get_backend().snapshot(variables.tensors(live)).arrays
    return [leaf.to_json() for leaf in live], dict(arrays)


def is_of_optimizer(variable):
    return weights.group(variable["name"]) == "optimizer"


def put(net, saved, tensors):
    weights.put(net, saved, tensors, Path("step-00000001"))


def test_without_an_optimizer_the_weights_alone_are_set():
    saved, tensors = saved_of(trained())
    net = trained(seed=6)
    live, before = saved_of(net)
    put(net, [v for v in saved if not is_of_optimizer(v)], tensors)
    after = saved_of(net)[1]
    for theirs, ours in zip(saved, live, strict=True):
        old, new = before[ours["name"]], tensors[theirs["name"]]
        expected = old if is_of_optimizer(ours) else new
        assert np.array_equal(after[ours["name"]], expected), ours["path"]


def test_a_part_of_an_optimizer_is_refused():
    """Half of it would go on from the checkpoint, and half from nothing."""
    saved, tensors = saved_of(trained())
    last = [v for v in saved if is_of_optimizer(v)][-1]
    net = trained(seed=6)
    live, before = saved_of(net)
    (missing,) = (v["path"] for v in live if v["name"].startswith(last["name"][:14]))
    with pytest.raises(CheckpointMismatchError) as found:
        put(net, [v for v in saved if v != last], tensors)
    assert f"; only one has {missing}\n" in str(found.value)
    after = saved_of(net)[1]
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_what_hangs_on_a_model_is_restored_with_it(tmp_path):
    def made(count):
        net = trained()
        net.second = keras.optimizers.SGD()
        net.second.build(net.trainable_variables)
        net.second.iterations.assign(count)
        return net

    fitting.interrupted(tmp_path, net=made(5), save_freq=1)
    net = made(6)
    ResilientFit(net, checkpoint_dir=tmp_path).restore()
    assert int(net.second.iterations) == 5
