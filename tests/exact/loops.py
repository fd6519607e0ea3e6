"""Programs with a training loop of their own.

Each is given ``make``, which is ``resilient.Run`` with a directory, and a ``killer``,
to which it says each step; it returns what is compared, by name, and its ``run``.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from .fits import BATCH, CLASSES, FEATURES, SAMPLES, compiled, noisy, rows
from .killing import Killer
from .sources import Shuffled

Make = Callable[..., Any]
Compared = dict[str, Any]


class Plain:
    """What a user has without ``resilient.Run``."""

    def __init__(self, state: Any = None, **objects: Any) -> None:
        self.state, self.step = state, 0
        self.history: dict[str, list[float]] = defaultdict(list)

    def loop(self, data: Any, *, epochs: int) -> Iterator[tuple[int, int, Any]]:
        for epoch in range(epochs):
            for batch in data:
                yield epoch, self.step, batch
                self.step += 1

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            self.history[name].append(float(value))


def ready() -> keras.Model:
    """A compiled model whose metrics are there before the loop, as it has to be."""
    net = compiled(metrics=["accuracy"])
    net.test_on_batch(*rows(BATCH))
    net.reset_metrics()
    return net


def loop_of_keras(make: Make, killer: Killer) -> Compared:
    """Epochs and batches, numbers drawn before and after the batches."""
    net, mean = ready(), keras.metrics.Mean()
    run, data = make(net=net, mean=mean), rows()
    for epoch in run.epochs(3):
        mean.reset_state()
        drawn = float(keras.random.uniform(())) + np.random.rand() + random.random()
        for step, batch in run.batches(data, batch_size=BATCH):
            loss, accuracy = net.train_on_batch(*batch)
            mean.update_state(loss)
            run.log(loss=loss, accuracy=accuracy, drawn=drawn)
            killer.step(step)
        run.log(mean=mean.result(), after=np.random.rand())
        killer.reached("epoch ends", epoch)
    return {"net": net, "mean": mean, "run": run}


def loop_of_two_networks(make: Make, killer: Killer) -> Compared:
    """A critic and a generator in front of it, each with its optimizer, in turn."""
    critic = noisy()
    critic.compile(keras.optimizers.Adam(0.01), "mse")
    generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(FEATURES)])
    both = keras.Sequential([keras.Input((4,)), generator, critic])
    both.compile(keras.optimizers.RMSprop(0.01), "mse")
    latent = np.random.default_rng(6)
    run = make(critic=critic, both=both, latent=latent)
    x, _ = rows()
    batches = [(x[i : i + BATCH],) for i in range(0, SAMPLES - BATCH, BATCH)]
    for _, step, (real,) in run.loop(batches, epochs=4):
        seed = latent.normal(size=(BATCH, 4)).astype("float32")
        fake = np.asarray(generator.predict_on_batch(seed))
        target = np.ones((BATCH, CLASSES), "float32")
        run.log(
            real=critic.train_on_batch(real, target),
            fake=critic.train_on_batch(fake, 0 * target),
            both=both.train_on_batch(seed, target),
        )
        killer.step(step)
    return {"critic": critic, "both": both, "latent": latent, "run": run}


def loop_by_hand(make: Make, killer: Killer) -> Compared:
    """Without an iterator: the loop draws its batches; generators of the user's own."""
    net, numbers, own = ready(), np.random.default_rng(5), random.Random(6)
    rate, seen = keras.Variable(1.0, trainable=False), Shuffled()
    objects = {"net": net, "numbers": numbers, "own": own, "rate": rate, "seen": seen}
    run = make(**objects)
    x, y = rows()
    with run:
        while run.step < 15:
            mine = numbers.integers(0, SAMPLES, BATCH)
            loss = net.train_on_batch(x[mine] + np.float32(own.random()), y[mine])[0]
            rate.assign(rate * 0.9 + np.random.rand())
            seen.batch += int(mine[0])
            run.log(loss=loss, rate=rate)
            killer.step(run.step)
            run.advance()
    return {**objects, "run": run}


def loop_asked_to_stop(make: Make, killer: Killer) -> Compared:
    """Two loops in a row, the second one on a generator without an end."""
    net = ready()
    run = make(net=net)
    for _, step, batch in run.loop(rows(), epochs=1, batch_size=BATCH):
        run.log(loss=net.train_on_batch(*batch)[0])
        killer.step(step)
    np.random.rand()

    def endless() -> Iterator[Any]:
        x, y = rows(seed=1)
        numbers = np.random.default_rng(8)
        while True:
            mine = numbers.integers(0, SAMPLES, BATCH)
            yield x[mine], y[mine]

    for _, step, batch in run.loop(endless(), epochs=3, steps_per_epoch=5):
        run.log(loss=net.train_on_batch(*batch)[0])
        killer.step(step)
        if step == 13:
            run.stop()
    return {"net": net, "run": run}


def loop_tape(make: Make, killer: Killer) -> Compared:
    """TensorFlow: a tape, a module, a generator, a pipeline that shuffles."""
    import tensorflow as tf

    net, optimizer = noisy(), keras.optimizers.Adam(0.01)
    module = tf.Module()
    module.noise, module.count = tf.random.Generator.from_seed(3), tf.Variable(0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(net.trainable_variables)
    run = make(net=net, optimizer=optimizer, module=module)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        module.count.assign_add(1)
        x += module.noise.normal(tf.shape(x))
        with tf.GradientTape() as tape:
            loss = loss_of(y, net(x, training=True))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply(gradients, net.trainable_variables)
        return loss

    data = tf.data.Dataset.from_tensor_slices(rows()).shuffle(SAMPLES, seed=2)
    for _, step, (x, y) in run.loop(data.batch(BATCH).prefetch(2), epochs=3):
        run.log(loss=train(x + tf.random.normal(x.shape), y))
        killer.step(step)
    variables = [*module.variables]
    return {"net": net, "optimizer": optimizer, "module": variables, "run": run}


def loop_tree(make: Make, killer: Killer) -> Compared:
    """JAX: a tree with a key, the same arrays twice, and plain values."""
    import jax
    import jax.numpy as jnp

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        scores = x @ weights["w"] + weights["b"].astype(jnp.float32)
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(y)), y])

    @jax.jit
    def train(tree: Any, x: Any, y: Any) -> Any:
        key, now = jax.random.split(tree["key"])
        x += jax.random.normal(now, x.shape)
        loss, gradients = jax.value_and_grad(loss_of)(tree["weights"], x, y)
        slots = jax.tree.map(lambda v, g: 0.9 * v + g, tree["slots"], gradients)
        weights = jax.tree.map(
            lambda p, v: (p - 0.05 * v).astype(p.dtype), tree["weights"], slots
        )
        return loss, {**tree, "weights": weights, "slots": slots, "key": key}

    key = jax.random.key(3)
    w = jax.random.normal(key, (FEATURES, CLASSES))
    weights = {"w": w, "b": jnp.zeros(CLASSES, jnp.bfloat16)}
    slots = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "target": weights, "slots": slots, "key": key}
    run = make(state=state | {"none": None})
    for epoch, step, (x, y) in run.loop(Shuffled(), epochs=3):
        loss, run.state = train(run.state, x, y)
        if epoch and step % 4 == 0:
            run.state = {**run.state, "target": run.state["weights"]}
        run.log(loss=loss)
        killer.step(step)
    return {"run": run}


def loop_torch(make: Make, killer: Killer) -> Compared:
    """PyTorch: two optimizers, a schedule, a scaler, an average, dropout."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    net = nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4)
    )
    head = nn.Linear(8, CLASSES)
    first = torch.optim.AdamW(net.parameters(), lr=0.01)
    objects = {
        "net": net,
        "head": head,
        "first": first,
        "second": torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9),
        "schedule": torch.optim.lr_scheduler.OneCycleLR(first, 0.1, total_steps=30),
        "scaler": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4),
        "average": torch.optim.swa_utils.AveragedModel(net),
        "noise": torch.Generator().manual_seed(4),
    }
    run = make(**objects)
    data = TensorDataset(*map(torch.from_numpy, rows()))
    scaler = objects["scaler"]
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    for _, step, (x, y) in run.loop(loader, epochs=4):
        first.zero_grad()
        objects["second"].zero_grad()
        noise = torch.randn(x.shape, generator=objects["noise"]) * random.random()
        loss = nn.functional.cross_entropy(head(net(x + noise)), y)
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.step(objects["second"])
        scaler.update()
        objects["schedule"].step()
        objects["average"].update_parameters(net)
        run.log(loss=loss, rate=objects["schedule"].get_last_lr()[0])
        killer.step(step)
    objects["noise"] = objects["noise"].get_state()
    return {**objects, "run": run}
