"""``tf.data`` hangs when a restored iterator over several datasets is saved at its end.

An iterator of ``sample_from_datasets`` is saved, restored and drawn from until one of
the datasets ends. Then saving it never returns.

Backends: tensorflow
"""

import os
import sys
import tempfile
import threading

import tensorflow as tf


def save(iterator, path):
    return tf.train.Checkpoint(iterator=iterator).write(path)


both = [tf.data.Dataset.range(15)] * 2
data = tf.data.Dataset.sample_from_datasets(both, [0.3, 0.7], seed=3)
iterator = iter(data)
for _ in range(20):
    next(iterator)
with tempfile.TemporaryDirectory() as directory:
    path = save(iterator, os.path.join(directory, "a"))
    resumed = iter(data)
    tf.train.Checkpoint(iterator=resumed).read(path)
    for _ in range(10):
        next(resumed)
    again = os.path.join(directory, "b")
    saving = threading.Thread(target=save, args=(resumed, again), daemon=True)
    saving.start()
    saving.join(2)
if not saving.is_alive():
    sys.exit("gone: the restored iterator was saved")
print("shown: saving the restored iterator does not return", flush=True)
os._exit(0)  # or the interpreter would wait for it
