"""The result for a batch depends on the sizes of earlier batches.

Keras traces a step for the size of the first batch, and for all sizes when a different
one follows; before 3.16, when it follows in a later fit. A process that begins with the
small last batch of an epoch has other traces.

Backends: tensorflow
"""

import sys

import keras
import numpy as np

random = np.random.RandomState(0)
x, y = random.rand(32, 8, 8, 1).astype("float32"), random.rand(32, 3)


def trained(*sizes: int) -> list[np.ndarray]:
    """The weights after a step on the last size; earlier steps are undone."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.BatchNormalization(),
    ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    before = model.get_weights()
    for size in sizes:
        model.set_weights(before)
        model.fit(x[:size], y[:size], batch_size=size, verbose=0, shuffle=False)
    return model.get_weights()


alone, after_another = trained(7), trained(32, 7)
differ = [not np.array_equal(a, b) for a, b in zip(alone, after_another, strict=True)]
if any(differ):
    print(f"shown: {sum(differ)} of {len(differ)} weights differ after the same batch")
else:
    sys.exit("gone: all weights are the same")
