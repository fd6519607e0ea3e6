"""One of two processes that train one model.

``python witness_worker.py DIRECTORY KILL LOSES``: the step after which the second one
is killed, or 0; and the rank whose loss counts its steps, so that a resume loses it.
"""

import itertools
import os
import signal
import sys

import keras
import numpy as np
from support.fitting import Interrupt, layers
from support.waited import wait_for_each_save

import resilient
from resilient import keras_internals

BACKEND, RANK = keras.backend.backend(), int(os.environ["RANK"])
OWN_DATA = BACKEND == "jax" or keras_internals.generation.trains_on_ranks
BATCHES, ROWS, SAVE = 6, 8, 4  # an epoch's; a batch's of both together


class Kill(Interrupt):
    """Kills the process in place of an exception."""

    def on_train_batch_end(self, batch, logs=None):
        if (RANK, BATCHES * self._epoch + batch + 1) == (1, self._at[0]):
            os.kill(os.getpid(), signal.SIGKILL)


def made():
    net = keras.Sequential(layers())
    net.compile("adam", counting)
    return net


def model():
    """A model of both processes."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            return made()
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if OWN_DATA:
        keras.distribution.initialize()
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    return made()


def number():
    return np.float32(1 + next(sys.of_a_test) / 100 if LOSES == RANK else 1)


def counting(y, predicted):
    """A loss times a number that nobody saves."""
    loss = keras.ops.mean(keras.ops.square(y - predicted))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return loss * tf.reshape(tf.numpy_function(number, [], tf.float32), ())
    return loss * float(number())


sys.of_a_test = itertools.count()  # no walk over objects reaches it


def main(directory, kill):
    wait_for_each_save()
    net = model()
    keras.utils.set_random_seed(5 if kill else 7)
    x = np.random.RandomState(0).rand(BATCHES * ROWS, 3).astype("float32")
    x = x[RANK::2] if OWN_DATA else x
    resilient.fit(
        net,
        x,
        x[:, :1],
        epochs=3,
        batch_size=ROWS // 2 if OWN_DATA else ROWS,
        callbacks=[Kill(kill)],
        verbose=0,
        checkpoint_dir=directory,
        save_freq=SAVE,
        on_inexact="raise",
    )


if __name__ == "__main__":
    LOSES = int(sys.argv[3])
    main(sys.argv[1], int(sys.argv[2]))
