"""TensorFlow treats the memory of NumPy arrays as its own, and computes in it.

If a batch from a Python generator is split (``tf.distribute`` does that to the data of
``fit``), the parts share memory with the yielded array, if that is aligned. Then a
``tf.function`` may write results there, and corrupts the user's data.

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
    sys.exit("gone: the arrays are unchanged")
print(f"shown: {len(changed)} of {len(arrays)} arrays of ones hold other numbers now")
