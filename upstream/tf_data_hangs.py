"""``tf.data`` hangs when a restored iterator over several datasets is saved at its end.

An iterator of ``sample_from_datasets`` is saved, restored and drawn from until one of
the datasets ends. Then saving it never returns: mostly, for it depends on what threads
of ``tf.data`` have done by then.

Backends: tensorflow
"""

import os
import sys
import tempfile
import threading

import tensorflow as tf


def save(iterator, path):
    return tf.train.Checkpoint(iterator=iterator).write(path)


def hangs(directory):
    both = [tf.data.Dataset.range(15)] * 2
    data = tf.data.Dataset.sample_from_datasets(both, [0.3, 0.7], seed=3)
    iterator = iter(data)
    for _ in range(20):
        next(iterator)
    path = save(iterator, os.path.join(directory, "a"))
    resumed = iter(data)
    tf.train.Checkpoint(iterator=resumed).read(path)
    for _ in range(10):
        next(resumed)
    again = os.path.join(directory, "b")
    saving = threading.Thread(target=save, args=(resumed, again), daemon=True)
    saving.start()
    saving.join(2)
    return saving.is_alive()


for _ in range(20):
    with tempfile.TemporaryDirectory() as directory:
        if hangs(directory):
            print("shown: saving the restored iterator does not return", flush=True)
            os._exit(0)  # or the interpreter would wait for it
sys.exit("gone: the restored iterator was saved, each time")
