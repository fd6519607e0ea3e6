"""Packs batches as plain values, and computes their checksums.

A batch is a structure of tuples, lists and dicts whose leaves are arrays of any library
that Keras accepts, including sparse and ragged ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.errors import NotSupportedError
from resilient.serialization.schema import taking

# Limits a sparse matrix, whose memory grows with them, whatever it holds.
_MOST_ROWS = 2**26


def pack(batch: Any) -> Any:
    """A batch with each leaf as ``{"kind": ..., "parts": [numpy arrays]}``."""
    return _mapped(
        batch, lambda leaf: dict(zip(("kind", "parts"), _parts(leaf), strict=True))
    )


def unpack(packed: Any) -> Any:
    """Unpack a batch.

    Raises:
        MalformedError: It is not a packed batch.
    """
    with taking("a batch"):
        return _unpacked(packed)


def copied(leaf: Any) -> Any:
    """A copy of an array whose memory another library might share; else the same."""
    module = type(leaf).__module__.partition(".")[0]
    if isinstance(leaf, np.ndarray) or module == "scipy":
        return leaf.copy()
    if module == "torch":
        return leaf.detach().clone()
    return np.array(leaf) if module == "jaxlib" else leaf


def checksum(batch: Any) -> str:
    """xxh3_128 of kinds, dtypes, shapes and bytes of all leaves, in order."""
    digest = xxhash.xxh3_128()

    def add(leaf: Any) -> None:
        kind, parts = _parts(leaf)
        for part in parts:
            digest.update(f"{kind} {part.dtype} {part.shape};".encode())
            if not part.dtype.hasobject:
                digest.update(as_bytes(part).data)
            elif _is_plain(part):  # strings: their text, not their addresses
                digest.update(repr(part.tolist()).encode())
            else:
                for item in part.ravel().tolist():
                    digest.update(b"item;")
                    _mapped(item, add)

    _mapped(batch, add)
    return digest.hexdigest()


def outline(batch: Any) -> Any:
    """Its structure, with dtypes and ranks."""

    def of(leaf: Any) -> Any:
        kind, parts = _parts(leaf)
        return kind, [
            (part.dtype.kind, part.dtype.itemsize, part.ndim) for part in parts
        ]

    return _mapped(batch, of)


def _mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {key: _mapped(item, function) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return tuple(_mapped(item, function) for item in batch)
    if isinstance(batch, (list, tuple)):
        return type(batch)(_mapped(item, function) for item in batch)
    return function(batch)


def _parts(leaf: Any) -> tuple[str, list[np.ndarray]]:
    """The kind of a leaf, and the plain arrays it consists of."""
    cls = type(leaf)
    module, name = cls.__module__.partition(".")[0], cls.__name__
    if module == "torch":
        import torch

        tensor = leaf.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # which NumPy lacks
            return "torch bfloat16", [tensor.view(torch.int16).numpy()]
        return "torch", [tensor.numpy()]
    if module == "tensorflow":
        if name == "SparseTensor":
            parts = (leaf.indices, leaf.values, leaf.dense_shape)
            return "tensorflow sparse", [np.asarray(part) for part in parts]
        if name == "RaggedTensor":
            parts = (leaf.flat_values, *leaf.nested_row_splits)
            return "tensorflow ragged", [np.asarray(part) for part in parts]
        return "tensorflow", [np.asarray(leaf)]
    if module == "scipy":
        coo = leaf.tocoo()
        return "scipy", [coo.data, coo.row, coo.col, np.asarray(coo.shape)]
    if name == "BCOO":
        parts = (leaf.data, leaf.indices, leaf.shape)
        return "jax sparse", [np.asarray(part) for part in parts]
    if module in ("jax", "jaxlib"):
        return "jax", [np.asarray(leaf)]
    if isinstance(leaf, np.ndarray):
        return "numpy", [leaf]
    if isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic)):
        return "scalar", [np.asarray(leaf)]
    if hasattr(leaf, "__array__"):
        return "numpy", [np.asarray(leaf)]
    raise NotSupportedError(
        "A batch contains something that is not an array, so it cannot be saved or "
        "compared.",
        received=f"{cls.__module__}.{cls.__qualname__}",
        hint="Yield arrays, or tuples, lists and dicts of arrays.",
    )


def _unpacked(packed: Any) -> Any:
    if packed is None:
        return None
    if type(packed) is dict and isinstance(packed.get("kind"), str):
        return _built(packed["kind"], packed["parts"])
    if type(packed) is dict:
        return {key: _unpacked(item) for key, item in packed.items()}
    if type(packed) in (list, tuple):
        return type(packed)(_unpacked(item) for item in packed)
    raise ValueError(f"{type(packed).__name__} where an array is expected")


def _built(kind: str, parts: Any) -> Any:
    if not isinstance(parts, list) or not all(type(p) is np.ndarray for p in parts):
        raise ValueError("parts that are not arrays")
    if any(not _is_plain(part) for part in parts):
        raise ValueError("an array of Python objects")
    return _BUILDERS[kind](*parts)


def _is_plain(part: np.ndarray) -> bool:
    """Whether it holds only array data; strings are often objects."""
    kinds = (str, bytes, bool, int, float)
    return not part.dtype.hasobject or all(type(i) in kinds for i in part.flat)


def _shape(shape: np.ndarray, indices: np.ndarray) -> tuple[int, ...]:
    """That of a sparse array, if both are integers and it is a shape."""
    if {indices.dtype.kind, shape.dtype.kind} - set("iu") or shape.ndim != 1:
        raise ValueError("indices and a shape that are not integers")
    if (shape < 0).any():
        raise ValueError("a negative shape")
    return tuple(shape.tolist())


def _inside(shape: np.ndarray, indices: np.ndarray) -> tuple[int, ...]:
    """The shape, if all indices are within it."""
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        raise ValueError("indices and a shape that do not go together")
    if (indices < 0).any() or (indices >= shape).any():
        raise ValueError("indices outside the shape")
    return _shape(shape, indices)


def _scalar(array: np.ndarray) -> Any:
    if array.ndim:
        raise ValueError("a scalar with dimensions")
    return array.item()


def _torch(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array.copy())


def _torch_bfloat16(array: np.ndarray) -> Any:
    import torch

    if array.dtype != "int16":
        raise ValueError("floats of two bytes that are not two bytes")
    return _torch(array).view(torch.bfloat16)


def _tensorflow(array: np.ndarray) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(array)


def _tensorflow_sparse(
    indices: np.ndarray, values: np.ndarray, shape: np.ndarray
) -> Any:
    import tensorflow as tf

    _inside(shape, indices)
    return tf.SparseTensor(indices, values, shape)


def _tensorflow_ragged(
    values: np.ndarray, outer: np.ndarray, *inner: np.ndarray
) -> Any:
    import tensorflow as tf

    return tf.RaggedTensor.from_nested_row_splits(values, [outer, *inner])


def _scipy(
    data: np.ndarray, row: np.ndarray, col: np.ndarray, shape: np.ndarray
) -> Any:
    import scipy.sparse

    whole = _inside(shape, np.stack([row, col], axis=1))
    if whole[0] > _MOST_ROWS:
        raise ValueError(f"{whole[0]:,} rows")
    return scipy.sparse.coo_matrix((data, (row, col)), whole).tocsr()


def _jax(array: np.ndarray) -> Any:
    import jax

    return jax.numpy.asarray(array)


def _jax_sparse(data: np.ndarray, indices: np.ndarray, shape: np.ndarray) -> Any:
    from jax.experimental import sparse

    return sparse.BCOO(
        (data, indices), shape=_shape(shape, indices)
    )  # it may be padded


# How to build each kind of leaf from its parts.
_BUILDERS: dict[str, Callable[..., Any]] = {
    "numpy": lambda array: array,
    "scalar": _scalar,
    "torch": _torch,
    "torch bfloat16": _torch_bfloat16,
    "tensorflow": _tensorflow,
    "tensorflow sparse": _tensorflow_sparse,
    "tensorflow ragged": _tensorflow_ragged,
    "scipy": _scipy,
    "jax": _jax,
    "jax sparse": _jax_sparse,
}
