"""A JAX training loop with optax that survives being killed.

    python examples/jax_loop.py
    python examples/jax_loop.py --checkpoint-dir runs/b --kill-at 40

The second command kills itself (SIGKILL) after step 40. Run it again: it continues with
the batch after the last checkpoint, and prints the same digest as the first one.
"""

import argparse
import functools
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import resilient

State = dict[str, Any]


def make_parameters(key: jax.Array) -> State:
    """A two-layer network."""
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (64, 128)) / 8,
        "output": jax.random.normal(second, (128, 10)) / 11,
    }


def loss_of(parameters: State, key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross entropy, with dropout."""
    hidden = jax.nn.relu(x @ parameters["hidden"])
    kept = jax.random.bernoulli(key, 0.7, hidden.shape)
    scores = jnp.where(kept, hidden / 0.7, 0.0) @ parameters["output"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    directory = Path("runs/jax-loop")
    parser.add_argument("--checkpoint-dir", type=Path, default=directory)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-at", type=int, metavar="STEP")
    arguments = parser.parse_args()

    resilient.deterministic(seed=7)
    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target.astype("int32")
    schedule = optax.cosine_decay_schedule(0.01, decay_steps=40 * arguments.epochs)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
        key, now = jax.random.split(state["key"])
        differentiate = jax.value_and_grad(loss_of)
        loss, gradients = differentiate(state["parameters"], now, x, y)
        updates, slots = optimizer.update(
            gradients, state["slots"], state["parameters"]
        )
        parameters = optax.apply_updates(state["parameters"], updates)
        return {"parameters": parameters, "slots": slots, "key": key}, loss

    parameters = make_parameters(jax.random.key(1))
    run = resilient.Run(
        arguments.checkpoint_dir,
        save_freq=10,
        state={
            "parameters": parameters,
            "slots": optimizer.init(parameters),
            "key": jax.random.key(2),
        },
    )
    for epoch, step, batch in run.loop((x, y), epochs=arguments.epochs, batch_size=50):
        run.state, loss = train_step(run.state, *batch)
        run.log(loss=loss)
        if step % 36 == 35:
            print(f"epoch {epoch}: loss {loss:.4f}")
        if step == arguments.kill_at:
            kill_once(arguments.checkpoint_dir)

    found = hashlib.sha256(json.dumps(run.history["loss"]).encode())
    for array in jax.tree.leaves((run.state["parameters"], run.state["slots"])):
        found.update(np.asarray(array).tobytes())
    print("digest", found.hexdigest())


def kill_once(directory: Path) -> None:
    """Die as if the machine were taken away, once per run."""
    happened = directory / "killed"
    if not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
