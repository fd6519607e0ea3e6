"""A ``tf.data`` pipeline computes ahead of its consumer, without ``prefetch``.

TensorFlow adds one as an optimization. If a function of the pipeline changes a
variable, it is random how far that got when an iterator is dropped, as Keras drops the
one with which it peeks at a batch.

Backends: tensorflow
"""

import sys
import time

import tensorflow as tf


def computed(optimize: bool) -> int:
    """How many elements are computed when one is taken."""
    count = tf.Variable(0)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = optimize
    data = tf.data.Dataset.range(100).map(lambda number: count.assign_add(1))
    batches = iter(data.with_options(options))
    next(batches)
    time.sleep(0.5)
    return int(count)


ahead, plain = computed(optimize=True), computed(optimize=False)
assert plain == 1, plain
if ahead > 1:
    print(f"shown: one element was taken, and {ahead} were computed")
else:
    sys.exit("gone: one element was taken, and one computed")
