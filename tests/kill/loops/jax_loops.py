"""Loops of JAX alone: pytrees."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .parts import BATCH, CLASSES, FEATURES, arrays, reached
from .registry import Make, loop


class Slots(NamedTuple):
    """As optax keeps them."""

    count: Any
    velocity: Any


class Shuffled:
    """Batches in another order in each epoch; it tells and takes its position."""

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0

    def __iter__(self) -> Any:
        x, y = arrays()
        while self.batch * BATCH < len(x):
            order = np.random.default_rng(self.epoch).permutation(len(x))
            rows = order[self.batch * BATCH : (self.batch + 1) * BATCH]
            self.batch += 1
            yield x[rows], y[rows]
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


def loss_of(parameters: Any, x: Any, y: Any) -> Any:
    scores = x @ parameters["w"] + parameters["b"].astype(jnp.float32)
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(y)), y])


@jax.jit
def train(state: Any, x: Any, y: Any) -> Any:
    key, now = jax.random.split(state["key"])
    noisy = x + jax.random.normal(now, x.shape)
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], noisy, y)
    slots = state["slots"]
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, slots.velocity, gradients)
    parameters = jax.tree.map(
        lambda p, v: (p - 0.05 * v).astype(p.dtype), state["parameters"], velocity
    )
    slots = Slots(slots.count + 1, velocity)
    return loss, {**state, "parameters": parameters, "slots": slots, "key": key}


@loop("step@3", "step@8", "step@10", plain=True)
def pytree(make: Make) -> dict[str, Any]:
    """A tree with a key, the same array twice, plain values; reference: plain loop."""
    key = jax.random.key(3)
    w = jax.random.normal(key, (FEATURES, CLASSES))
    parameters = {"w": w, "b": jnp.zeros(CLASSES, jnp.bfloat16)}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = {
        "parameters": parameters,
        "target": parameters,  # the same arrays, until they are trained
        "slots": Slots(jnp.zeros((), jnp.int32), zeros),
        "key": key,
    }
    run = make(state=state)
    del state, parameters
    seen = 0.0
    for epoch, step, (x, y) in run.loop(Shuffled(), epochs=3):
        loss, run.state = train(run.state, x, y)
        if epoch and step % 4 == 0:
            run.state = {**run.state, "target": run.state["parameters"]}
        run.log(loss=loss)
        seen += float(loss)
        reached(step)
    return {"state": run.state, "run": run}


@loop("step@5", "step@13")
def tree_with_plain_values(make: Make) -> dict[str, Any]:
    """Numbers and arrays of NumPy stay what they are; a generator of NumPy is named."""
    numbers = np.random.default_rng(3)
    run = make(state={"count": 0, "mean": np.zeros(3), "none": None}, numbers=numbers)
    with run:
        while run.step < 18:
            state = run.state
            state["mean"] += numbers.normal(size=3)  # in place
            run.state = {**state, "count": state["count"] + 1}
            run.log(mean=state["mean"].mean())
            reached(run.step)
            run.advance()
    return {"state": run.state, "numbers": numbers, "run": run}
