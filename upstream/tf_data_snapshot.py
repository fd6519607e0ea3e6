"""Saving an iterator while ``snapshot`` writes its files damages them.

The epoch ends as it should; the next one, and every later program, cannot read what was
written. The threads that write race with the saves: one try in twenty shows nothing.

Backends: tensorflow
"""

import os
import sys
import tempfile

import tensorflow as tf

TRIES = 20


def read_after_saves() -> int:
    """The numbers read in the second epoch, where the first was saved on its way."""
    with tempfile.TemporaryDirectory() as directory:
        data = tf.data.Dataset.range(160).snapshot(os.path.join(directory, "snapshot"))
        iterator = iter(data.batch(8))
        saved = tf.train.Checkpoint(iterator=iterator)
        for number, _ in enumerate(iterator):
            if number % 5 == 4:
                saved.write(os.path.join(directory, f"checkpoint-{number}"))
        return sum(1 for _ in data)


try:
    counts = [read_after_saves() for _ in range(TRIES)]
except tf.errors.OpError as error:
    print("shown:", str(error).partition("\n")[0][:80])
else:
    sys.exit(f"gone: {min(counts)} of 160 numbers in each of {TRIES} tries")
