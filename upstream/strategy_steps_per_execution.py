"""Keras fails with ``steps_per_execution`` above 1 under a TensorFlow strategy.

https://github.com/keras-team/keras/issues/19246

Backends: tensorflow
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
    model.compile("sgd", "mse", steps_per_execution=2)
try:
    model.fit(x, y, batch_size=2, verbose=0)
except tf.errors.InvalidArgumentError as error:
    assert "must feed a value for placeholder" in str(error), error
    print("shown: InvalidArgumentError: You must feed a value for placeholder tensor")
else:
    sys.exit("gone: it trained")
