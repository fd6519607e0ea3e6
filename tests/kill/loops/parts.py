"""What the loops share: data, a model of Keras, its training step on each backend."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

SAMPLES, BATCH, FEATURES, CLASSES = 22, 4, 6, 3
STEPS = 6  # batches of an epoch, the last one smaller

changed = ""  # what the script of this attempt has otherwise than before

_reached: list[Any] = []  # what is told of each step; the harness appends one


def reached(step: int) -> None:
    """Called in the body of each step, once it is trained: the place of a kill."""
    for tell in _reached:
        tell(step)


def when_reached(tell: Any) -> None:
    _reached.append(tell)


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    x = random.rand(SAMPLES, FEATURES).astype("float32")
    return x, random.randint(0, CLASSES, SAMPLES)


def model(seed: int = 3) -> keras.Sequential:
    """A model whose every batch draws, and which keeps statistics."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.4, seed=seed),
            layers.Dense(CLASSES),
        ]
    )


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trainer(net: keras.Model, optimizer: Any, run: Any) -> Any:
    """The training step by hand: takes a batch, returns its loss."""
    return _TRAINERS[keras.backend.backend()](net, optimizer, run)


def jax_state(net: keras.Model, optimizer: Any) -> Any:
    """What the step trains on JAX; None elsewhere."""
    if keras.backend.backend() != "jax":
        return None
    optimizer.build(net.trainable_variables)
    groups = (net.trainable_variables, net.non_trainable_variables, optimizer.variables)
    return tuple([variable.value for variable in group] for group in groups)


def _tensorflow(net: keras.Model, optimizer: Any, run: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, net(x, training=True))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply(gradients, net.trainable_variables)
        return loss

    return lambda batch: step(*batch)


def _jax(net: keras.Model, optimizer: Any, run: Any) -> Any:
    import jax

    def loss_and_updates(trainable: Any, others: Any, x: Any, y: Any) -> Any:
        logits, others = net.stateless_call(trainable, others, x, training=True)
        return loss_of(y, logits), others

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, others, slots = state
        differentiate = jax.value_and_grad(loss_and_updates, has_aux=True)
        (loss, others), gradients = differentiate(trainable, others, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return loss, (trainable, others, slots)

    def train(batch: Any) -> Any:
        loss, run.state = step(run.state, *batch)
        return loss

    return train


def _torch(net: keras.Model, optimizer: Any, run: Any) -> Any:
    def train(batch: Any) -> Any:
        x, y = batch
        net.zero_grad()
        loss = loss_of(ops.convert_to_tensor(y), net(x, training=True))
        loss.backward()
        weights = net.trainable_variables
        import torch

        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        return loss

    return train


_TRAINERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
