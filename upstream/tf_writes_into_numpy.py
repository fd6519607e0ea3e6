"""TensorFlow takes the memory of NumPy's arrays for its own, and computes in it.

A batch from a Python generator that is divided (``tf.distribute`` does that with the
data of ``fit``) shares memory with the array that was yielded, if that is aligned. A
``tf.function`` may then write results there: the user's data is another one.

Backends: tensorflow
"""

import sys

import numpy as np
import tensorflow as tf


def aligned(shape):
    size = int(np.prod(shape))
    memory = np.zeros(size + 32, "float32")
    start = -memory.ctypes.data % 128 // 4
    return memory[start : start + size].reshape(shape)


arrays = [aligned((8, 16)) for _ in range(50)]
for array in arrays:
    array[:] = 1.0
data = tf.data.Dataset.from_generator(
    lambda: iter(arrays), output_signature=tf.TensorSpec((None, 16))
)
iterator = iter(data.rebatch(4).prefetch(2))


@tf.function
def step():
    return tf.reduce_sum(next(iterator) * 3.0)


for _ in range(2 * len(arrays)):
    step()
changed = [array for array in arrays if (array != 1.0).any()]
if not changed:
    sys.exit("gone: the arrays are what they were")
print(f"shown: of {len(arrays)} arrays of ones {len(changed)} hold other numbers now")
