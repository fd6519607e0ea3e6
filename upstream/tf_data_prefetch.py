"""``tf.data`` adds its own ``prefetch``, and draws ahead without being asked to.

It draws more from a Python generator than it yields; the surplus is lost with the
iterator.

Backends: tensorflow
"""

import sys
import time

import tensorflow as tf

drawn = []


def numbers():
    for number in range(100):
        drawn.append(number)
        yield number


spec = tf.TensorSpec((), "int32")
data = tf.data.Dataset.from_generator(numbers, output_signature=spec)
iterator = iter(data)
for _ in range(5):
    next(iterator)
for _ in range(100):
    if len(drawn) == 5:  # another thread draws
        time.sleep(0.05)
if len(drawn) == 5:
    sys.exit("gone: 5 elements were drawn for 5 yielded")
print(f"shown: {len(drawn)} elements were drawn for 5 yielded")
