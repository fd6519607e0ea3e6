"""Keras fails with ``ema_overwrite_frequency`` under a TensorFlow strategy.

Backends: tensorflow
Shows with: keras<3.16
"""

import sys

import keras
import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
x = y = np.zeros((8, 1), "float32")
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2)
    model.compile(optimizer, "mse")
try:
    model.fit(x, y, batch_size=2, verbose=0)
except RuntimeError as error:
    assert "merge_call" in str(error), error
    print("shown: RuntimeError: `merge_call` called while defining a new graph")
else:
    sys.exit("gone: it trained")
