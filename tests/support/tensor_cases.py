"""Arrays that are hard to keep, and live tensors of whichever backend is under test."""

import os
from typing import Any

import numpy as np

from resilient.backends.arrays import DTYPES, EXTENSION_DTYPES

SHAPES = {"matrix": (3, 4), "scalar": (), "none": (0, 3), "many": (2, 1, 3, 2)}
SHAPES |= {"large": (600, 3, 150)}  # over 256 KiB of bytes: formats write it otherwise


def dtype(name: str) -> np.dtype[Any]:
    return EXTENSION_DTYPES.get(name) or np.dtype(name)


def any_bytes(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Array of random bytes: among floats NaNs with payloads, -0.0 and subnormals."""
    kind = dtype(name)
    count = int(np.prod(shape))
    limit = 2 if name == "bool" else 256
    raw = np.random.default_rng(seed).integers(
        limit, size=count * kind.itemsize, dtype=np.uint8
    )
    return raw.view(kind).reshape(shape)


def every_dtype_and_shape() -> dict[str, np.ndarray]:
    return {
        f"{kind}.{shape}": any_bytes(kind, SHAPES[shape])
        for kind in sorted(DTYPES)
        for shape in SHAPES
    }


def difficult_floats() -> np.ndarray:
    """Quiet and signalling NaNs of both signs, zeros, infinities, subnormals."""
    bits = [0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF800001, 0x80000000, 0]
    bits += [0x7F800000, 0xFF800000, 0x00000001, 0x807FFFFF, 0x7F7FFFFF]
    return np.array(bits, np.uint32).view(np.float32)


def live(array: np.ndarray) -> Any:
    """The array as a tensor that the backend itself made."""
    match os.environ["KERAS_BACKEND"]:
        case "tensorflow":
            import tensorflow as tf

            return tf.constant(array)
        case "jax":
            import jax

            return jax.numpy.array(array)
        case _:
            import torch

            name = str(array.dtype)
            if name not in EXTENSION_DTYPES:
                return torch.from_numpy(array.copy())
            width = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
            return torch.from_numpy(array.view(width)).view(getattr(torch, name))


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether type, dtype, shape and every byte are equal."""
    return (
        type(actual) is np.ndarray
        and actual.dtype == expected.dtype
        and actual.shape == expected.shape
        and actual.tobytes() == expected.tobytes()
    )


def differing(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> list[str]:
    """Names that are missing, unexpected or not the same."""
    names = actual.keys() ^ expected.keys()
    names |= {n for n in actual.keys() & expected if not same(actual[n], expected[n])}
    return sorted(names)
