"""Loops of TensorFlow alone."""

from typing import Any

import keras
import tensorflow as tf

from .parts import BATCH, CLASSES, FEATURES, SAMPLES, arrays, reached
from .registry import Make, loop


class Net(tf.Module):
    """Linear, by hand, with noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = tf.random.Generator.from_seed(3)
        self.shift = [keras.Variable(0.0)]  # what hangs on it, too
        self.w = tf.Variable(self.noise.normal((FEATURES, CLASSES)), name="w")
        self.b = tf.Variable(tf.zeros(CLASSES), name="b")
        self.seen = tf.Variable(0, trainable=False, dtype=tf.int64, name="seen")

    def __call__(self, x: Any) -> Any:
        self.seen.assign_add(tf.shape(x, tf.int64)[0])
        return (x + self.noise.normal(tf.shape(x))) @ self.w + self.b + self.shift[0]


def data(*, shuffled: bool = True) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(arrays())
    if shuffled:
        dataset = dataset.shuffle(SAMPLES, seed=2)
    return dataset.batch(BATCH).prefetch(2)


def trainer(net: Net, velocity: list[tf.Variable]) -> Any:
    @tf.function(reduce_retracing=True)
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x))
            loss = tf.reduce_mean(losses)
        weights = [net.w, net.b]
        gradients = tape.gradient(loss, weights)
        for weight, slot, gradient in zip(weights, velocity, gradients, strict=True):
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(0.05 * slot)
        return loss

    return train


@loop("step@3", "step@8", "step@10", plain=True, in_exact=True)
def module_by_hand(make: Make) -> dict[str, Any]:
    """Reference: the plain loop."""
    net = Net()
    velocity = tf.Module()
    velocity.slots = [tf.Variable(tf.zeros_like(v)) for v in (net.w, net.b)]
    step_counter = tf.Variable(0)
    run = make(net=net, velocity=velocity, counter=step_counter)
    train = trainer(net, velocity.slots)
    for _, step, (x, y) in run.loop(data(), epochs=3):
        run.log(loss=train(x + tf.random.normal(x.shape), y))
        step_counter.assign_add(1)
        net.shift[0].assign(net.shift[0] * 0.5 + step)
        reached(step)
    return {"net": net, "velocity": velocity, "counter": step_counter, "run": run}


@loop("step@4", "step@11", save_freq=3, plain=True)
def iterator_by_name(make: Make) -> dict[str, Any]:
    """As with tf.train.Checkpoint(iterator=...): the loop draws by itself."""
    net = Net()
    velocity = tf.Module()
    velocity.slots = [tf.Variable(tf.zeros_like(v)) for v in (net.w, net.b)]
    tf.random.set_seed(1)  # the shuffle's seed has a part of it
    batches = iter(data().repeat())
    run = make(net=net, velocity=velocity, batches=batches, noise=net.noise)
    train = trainer(net, velocity.slots)
    with run:
        while run.step < 15:
            run.log(loss=train(*next(batches)))
            reached(run.step)
            run.advance()
    return {"net": net, "velocity": velocity, "run": run}
