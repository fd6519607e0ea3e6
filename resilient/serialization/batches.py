"""Batches as plain values, and their checksums.

A batch is a structure of tuples, lists and dicts, with arrays of any library that Keras
takes as leaves: sparse and ragged ones too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from resilient.errors import NotSupportedError
from resilient.serialization.json_arrays import as_bytes


def pack(batch: Any) -> Any:
    """A batch with each leaf as ``{"kind": ..., "parts": [numpy arrays]}``."""
    return _mapped(
        batch, lambda leaf: dict(zip(("kind", "parts"), _parts(leaf), strict=True))
    )


def unpack(packed: Any) -> Any:
    """What was packed."""
    if isinstance(packed, dict) and set(packed) == {"kind", "parts"}:
        return _built(packed["kind"], packed["parts"])
    if isinstance(packed, dict):
        return {key: unpack(item) for key, item in packed.items()}
    if isinstance(packed, (list, tuple)):
        return type(packed)(unpack(item) for item in packed)
    return packed


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
            if part.dtype.hasobject:  # strings: their text, not their addresses
                digest.update(repr(part.tolist()).encode())
            else:
                digest.update(as_bytes(part).data)

    _mapped(batch, add)
    return digest.hexdigest()


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
    """The kind of a leaf, and the plain arrays that it is made of."""
    cls = type(leaf)
    module, name = cls.__module__.partition(".")[0], cls.__name__
    if module == "torch":
        tensor = leaf.detach().cpu()
        if tensor.dtype.is_floating_point and tensor.element_size() == 2:
            import torch

            dtype = str(tensor.dtype).rpartition(".")[2]
            return f"torch {dtype}", [tensor.view(torch.int16).numpy()]
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
        "A batch holds something that is not an array: it cannot be kept or checked.",
        received=f"{cls.__module__}.{cls.__qualname__}",
        hint="Let the data yield arrays, in tuples, lists and dicts.",
    )


def _built(kind: str, parts: list[np.ndarray]) -> Any:
    first = parts[0]
    if kind.startswith("tensorflow"):
        import tensorflow as tf

        if kind == "tensorflow sparse":
            return tf.SparseTensor(*parts)
        if kind == "tensorflow ragged":
            return tf.RaggedTensor.from_nested_row_splits(first, parts[1:])
        return tf.convert_to_tensor(first)
    if kind.startswith("torch"):
        import torch

        tensor = torch.from_numpy(first.copy())
        dtype = kind.partition(" ")[2]
        return tensor.view(getattr(torch, dtype)) if dtype else tensor
    if kind == "scipy":
        import scipy.sparse

        data, row, col, shape = parts
        return scipy.sparse.coo_matrix((data, (row, col)), tuple(shape)).tocsr()
    if kind.startswith("jax"):
        import jax

        if kind == "jax sparse":
            from jax.experimental import sparse

            return sparse.BCOO((parts[0], parts[1]), shape=tuple(map(int, parts[2])))
        return jax.numpy.asarray(first)
    return first.item() if kind == "scalar" else first
