"""Draws from every global generator; imported by tests and by their child processes."""

import random
import sys

import keras
import numpy as np


def draw() -> list[str]:
    """A little from every generator, an odd number of normals among it."""
    drawn = [random.random(), random.gauss(0, 1), random.getrandbits(50)]
    drawn += [np.random.normal(), *np.random.rand(3), *np.random.permutation(5)]
    drawn += [*np.asarray(keras.random.uniform((3,)))]
    if "torch" in sys.modules:
        import torch

        drawn += [*torch.rand(3), *torch.randperm(5), *torch.randn(3)]
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        generator = tf.random.get_global_generator()
        drawn += [*tf.random.uniform((3,)).numpy(), *generator.normal((3,)).numpy()]
        drawn += [*tf.random.normal((2,)).numpy(), *tf.random.uniform((3,)).numpy()]
    return [float(number).hex() for number in drawn]
