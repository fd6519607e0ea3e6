"""Loops with objects of Keras; the same on each backend but for the training step."""

import random
from typing import Any

import keras
import numpy as np

from . import parts
from .parts import BATCH, arrays, jax_state, loss_of, model, reached, trainer
from .registry import Make, loop


@loop("step@7", "step@9", "step@14", in_exact=True)
def model_and_optimizer(make: Make) -> dict[str, Any]:
    """Twice in one epoch; the optimizer is built by its first step."""
    net, optimizer = model(), keras.optimizers.Adam(0.01)
    state = jax_state(net, optimizer)
    run = make(model=net, optimizer=optimizer, state=state)
    train = trainer(net, optimizer, run)
    for _, step, batch in run.loop(arrays(), epochs=3, batch_size=BATCH):
        run.log(loss=train(batch))
        reached(step)
    return {"net": net, "optimizer": optimizer, "state": run.state, "run": run}


@loop("step@3", "step@8", "step@15", plain=True, in_exact=True)
def train_on_batch(make: Make) -> dict[str, Any]:
    """A compiled model, and a list of batches; its metrics are made before the loop."""
    net = model()
    net.compile("adam", loss_of, metrics=["accuracy"])
    x, y = arrays()
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    net.test_on_batch(*batches[0])
    net.reset_metrics()
    run = make(net=net)
    for _, step, batch in run.loop(batches, epochs=3):
        loss, accuracy = net.train_on_batch(*batch)
        run.log(loss=loss, accuracy=accuracy)
        reached(step)
    return {"net": net, "optimizer": net.optimizer, "metrics": net.metrics, "run": run}


@loop("step@6", "step@9", "step@13", in_exact=True)
def epochs_and_batches(make: Make) -> dict[str, Any]:
    """With a metric, and draws of random numbers between the epochs, kept in one."""
    net, optimizer = model(), keras.optimizers.SGD(0.05, momentum=0.9)
    metric = keras.metrics.Mean()
    state = jax_state(net, optimizer)
    run = make(model=net, optimizer=optimizer, metric=metric, state=state)
    train = trainer(net, optimizer, run)
    data = arrays()
    for _ in run.epochs(3):
        metric.reset_state()
        drawn = float(keras.random.uniform(())) + np.random.rand() + random.random()
        for step, batch in run.batches(data, batch_size=BATCH):
            metric.update_state(train(batch))
            run.log(drawn=drawn)
            reached(step)
        run.log(mean=metric.result(), after=keras.random.uniform(()))
    return {"net": net, "optimizer": optimizer, "metric": metric, "run": run}


@loop("step@8", "step@11", in_exact=True)
def changing(make: Make) -> dict[str, Any]:
    """What ``test_allow`` changes between two attempts, and what trains with it."""
    change = parts.changed
    net = model()
    if change == "config":
        net.layers[0].activation = keras.activations.tanh
    more = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", *([more] if change == "metrics" else [])]
    net.compile("adamw" if change == "optimizer" else "adam", loss_of, metrics=metrics)
    net.test_on_batch(*arrays())
    net.reset_metrics()
    run = make(net=net)
    data, size = arrays(7 if change == "data" else 0), BATCH
    size //= 2 if change == "batch_size" else 1
    for _, step, batch in run.loop(data, epochs=3, batch_size=size):
        run.log(loss=net.train_on_batch(*batch)[0])
        reached(step)
    return {"net": net, "optimizer": net.optimizer, "metrics": net.metrics, "run": run}
