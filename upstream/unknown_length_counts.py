"""On TensorFlow, Keras counts a step too many if data has no known length.

The step that finds no more data is traced with the others, and whatever needs no data
runs: each epoch ``optimizer.iterations`` grows by one more than there are batches.

Backends: tensorflow
Shows with: keras<3.16
"""

import sys

import keras
import numpy as np
import tensorflow as tf

batch = np.zeros((1, 1), "float32")
spec = tf.TensorSpec((1, 1))
data = tf.data.Dataset.from_generator(
    lambda: iter([(batch, batch)] * 2), output_signature=(spec, spec)
)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, verbose=0)

steps = int(model.optimizer.iterations)
if steps == 2:
    sys.exit("gone: optimizer.iterations is 2 after 2 batches")
print(f"shown: optimizer.iterations is {steps} after 2 batches")
