"""Train a GAN on TensorFlow (two models, two optimizers), and survive being killed.

    python examples/gan.py
    python examples/gan.py --checkpoint-dir runs/b --kill-at 40

The second command kills itself (SIGKILL) after step 40. Run it again: it continues with
the batch after the last checkpoint, and prints the same digest as the first one.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

NOISE = 16
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)


def make_generator() -> keras.Model:
    """From noise to an image of a digit."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(128),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Dense(64, activation="sigmoid"),
        ]
    )


def make_discriminator() -> keras.Model:
    """From an image to a score: how real it looks."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(128),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/gan"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-at", type=int, metavar="STEP")
    arguments = parser.parse_args()

    resilient.deterministic(seed=7)
    images = (load_digits().data / 16).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(len(images)).batch(50)
    generator, discriminator = make_generator(), make_discriminator()
    painting, judging = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    noise = keras.random.SeedGenerator(3)

    @tf.function(reduce_retracing=True)
    def train_step(real: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = keras.random.normal((tf.shape(real)[0], NOISE), seed=noise)
        with tf.GradientTape() as of_generator, tf.GradientTape() as of_discriminator:
            fake = generator(drawn, training=True)
            scores = [discriminator(x, training=True) for x in (real, fake)]
            fooled = loss_of(tf.ones_like(scores[1]), scores[1])
            judged = loss_of(tf.ones_like(scores[0]), scores[0])
            judged += loss_of(tf.zeros_like(scores[1]), scores[1])
        for tape, loss, model, optimizer in (
            (of_generator, fooled, generator, painting),
            (of_discriminator, judged, discriminator, judging),
        ):
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return fooled, judged

    run = resilient.Run(
        arguments.checkpoint_dir,
        save_freq=10,
        generator=generator,
        discriminator=discriminator,
        painting=painting,
        judging=judging,
        noise=noise,
    )
    for epoch, step, real in run.loop(dataset, epochs=arguments.epochs):
        fooled, judged = train_step(real)
        run.log(generator=fooled, discriminator=judged)
        if step % 36 == 35:
            print(f"epoch {epoch}: generator {fooled:.4f}, discriminator {judged:.4f}")
        if step == arguments.kill_at:
            kill_once(arguments.checkpoint_dir)

    found = hashlib.sha256(json.dumps(dict(run.history)).encode())
    for thing in (generator, discriminator, painting, judging):
        for variable in thing.variables:
            found.update(np.asarray(variable.numpy()).tobytes())
    print("digest", found.hexdigest())


def kill_once(directory: Path) -> None:
    """Die as if the machine were taken away, once per run."""
    happened = directory / "killed"
    if not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
