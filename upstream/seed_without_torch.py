"""``keras.utils.set_random_seed`` does not seed torch unless torch is the backend.

It seeds TensorFlow on every backend because ``tf.data`` shuffles, but a torch
``DataLoader`` shuffles, too.

Backends: tensorflow, jax
Needs: torch
"""

import sys

import torch  # isort: skip  (before TensorFlow, or the process crashes)
import keras

orders = []
for _ in range(2):
    keras.utils.set_random_seed(1)
    loader = torch.utils.data.DataLoader(range(20), shuffle=True, batch_size=20)
    orders += [batch.tolist() for batch in loader]
if orders[0] == orders[1]:
    sys.exit("gone: a DataLoader shuffles identically after the same seed")
print(f"shown: after the same seed {orders[0][:4]}... and {orders[1][:4]}...")
