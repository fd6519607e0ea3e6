"""Array inputs of every kind that Keras takes."""

import keras
import numpy as np
from keras import layers
from support import BACKENDS

from .parts import CLASSES, case, compiled, images, noisy, rows
from .registry import Case, scenario


@scenario("train_batch_end@1:3", save_freq=2, in_exact=True)
def backend_tensors_split() -> Case:
    x, y = (keras.ops.convert_to_tensor(part) for part in images())
    return case(compiled(noisy()), (x, y), validation_split=0.3)


@scenario("train_batch_end@1:3", save_freq=2, slow=BACKENDS)
def pandas_frame() -> Case:
    import pandas

    x, y = rows()
    frame = pandas.DataFrame(x, columns=[f"pixel {i}" for i in range(64)])
    return case(compiled(noisy((64,))), (frame, pandas.Series(y)))


@scenario(
    "train_batch_end@1:3", save_freq=2, backends=("tensorflow", "jax"), slow=["jax"]
)
def scipy_sparse() -> Case:
    import scipy.sparse

    x, y = rows()
    x[x < 0.7] = 0
    model = keras.Sequential(
        [
            keras.Input((64,), sparse=True),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(CLASSES),
        ]
    )
    settings = {"jit_compile": False}
    return case(compiled(model, **settings), (scipy.sparse.csr_matrix(x), y))


@scenario("train_batch_end@1:3", save_freq=2, slow=BACKENDS)
def float64_and_int8() -> Case:
    x, y = images()
    return case(compiled(noisy()), (x.astype("float64"), y.astype("int8")))


@scenario("train_batch_end@1:3", save_freq=2, in_exact=True)
def uint8_images_in_nested_dicts() -> Case:
    """Inputs nested in dicts, tuples and lists."""
    a, b, c = (keras.Input((8, 8, 1)) for _ in range(3))
    both = layers.Concatenate()([a, layers.GaussianNoise(0.1)(b), c])
    outputs = layers.Dense(CLASSES)(layers.Flatten()(both))
    model = keras.Model({"pair": (a, b), "rest": [c]}, outputs)
    x, y = images()
    pixels = (x * 255).astype("uint8")
    nested = {"pair": (x, x[::-1].copy()), "rest": [pixels / np.float32(255)]}
    return case(compiled(model), (nested, y))
