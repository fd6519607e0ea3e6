"""``tf.data`` restores an iterator with external state incorrectly.

With ``ExternalStatePolicy.IGNORE`` neither the save nor the restore fails, but random
functions start over in the middle of the data.

Backends: tensorflow
"""

import os
import sys
import tempfile

import tensorflow as tf

data = tf.data.Dataset.range(50).map(lambda _: tf.random.uniform((), seed=1))
options = tf.data.Options()
options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
)
data = data.with_options(options)
iterator = iter(data)
for _ in range(5):
    next(iterator)
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "iterator")
    try:
        path = tf.train.Checkpoint(iterator=iterator).write(path)
        resumed = iter(data)
        tf.train.Checkpoint(iterator=resumed).read(path)
    except tf.errors.OpError as error:
        sys.exit(f"gone: {error}")

expected, found = [float(n) for n in iterator], [float(n) for n in resumed]
if found == expected:
    sys.exit("gone: the restored iterator continues where the saved one was")
wrong = sum(a != b for a, b in zip(found, expected, strict=True))
print(f"shown: {wrong} of {len(expected)} elements after the restore are wrong")
