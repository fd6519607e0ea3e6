"""Packs batches as plain values, and computes their checksums.

A batch is a structure of tuples, lists and dicts whose leaves are arrays of any library
that Keras accepts, including sparse and ragged ones.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.errors import NotSupportedError
from resilient.serialization.schema import taking

_SCALARS = (bool, int, float, complex, str, bytes)


def pack(batch: Any) -> Any:
    """A batch with each leaf as ``{"kind": ..., "parts": [numpy arrays]}``."""
    return _mapped(
        batch, lambda leaf: dict(zip(("kind", "parts"), _parts(leaf), strict=True))
    )


@taking("a batch")
def unpack(packed: Any) -> Any:
    """Unpack a batch.

    Raises:
        MalformedError: It is not a packed batch.
    """
    return _mapped(
        packed, lambda leaf: _BUILDERS[leaf["kind"]](*leaf["parts"]), _is_packed
    )


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
            elif all(type(item) in _SCALARS for item in part.flat):
                digest.update(repr(part.tolist()).encode())  # not their addresses
            else:
                for item in part.ravel().tolist():
                    digest.update(b"item;")
                    _mapped(item, add)

    _mapped(batch, add)
    return digest.hexdigest()


def _mapped(
    batch: Any,
    function: Callable[[Any], Any],
    is_leaf: Callable[[Any], bool] = lambda value: False,
) -> Any:
    if batch is None:
        return None
    if isinstance(batch, dict) and not is_leaf(batch):
        return {key: _mapped(batch[key], function, is_leaf) for key in batch}
    if isinstance(batch, list | tuple):
        cls = list if isinstance(batch, list) else tuple
        return cls(_mapped(item, function, is_leaf) for item in batch)
    return function(batch)


def _is_packed(value: dict[Any, Any]) -> bool:
    """Whether it is a leaf; a dict in a batch may have the same keys."""
    return isinstance(value.get("kind"), str)


def _parts(leaf: Any) -> tuple[str, list[np.ndarray]]:
    """The kind of a leaf, and the plain arrays it consists of."""
    kind, parts = _kind(leaf)
    return kind, [np.asarray(part) for part in parts]


def _kind(leaf: Any) -> tuple[str, Any]:
    cls = type(leaf)
    module, name = cls.__module__.partition(".")[0], cls.__name__
    if module == "torch":
        tensor, torch = leaf.detach().cpu(), import_module("torch")
        if tensor.dtype == torch.bfloat16:  # which NumPy lacks
            return "torch bfloat16", [tensor.view(torch.int16).numpy()]
        return "torch", [tensor.numpy()]
    if name == "SparseTensor":
        return "tensorflow sparse", (leaf.indices, leaf.values, leaf.dense_shape)
    if name == "RaggedTensor":
        return "tensorflow ragged", (leaf.flat_values, *leaf.nested_row_splits)
    if module == "scipy":
        coo = leaf.tocoo()
        return "scipy", (coo.data, coo.row, coo.col, coo.shape)
    if name == "BCOO":
        return "jax sparse", (leaf.data, leaf.indices, leaf.shape)
    if module in ("tensorflow", "jax", "jaxlib"):
        return module.removesuffix("lib"), [leaf]
    if isinstance(leaf, _SCALARS) and not isinstance(leaf, np.generic):
        return "scalar", [leaf]
    if hasattr(leaf, "__array__"):
        return "numpy", [leaf]
    raise NotSupportedError(
        "A batch contains something that is not an array, so it cannot be saved or "
        "compared.",
        received=f"{cls.__module__}.{cls.__qualname__}",
        hint="Yield arrays, or tuples, lists and dicts of arrays.",
    )


def _torch(array: np.ndarray) -> Any:
    return import_module("torch").from_numpy(array.copy())


def _scipy(
    data: np.ndarray, row: np.ndarray, col: np.ndarray, shape: np.ndarray
) -> Any:
    coo = import_module("scipy.sparse").coo_matrix
    return coo((data, (row, col)), tuple(shape.tolist())).tocsr()


def _jax_sparse(data: np.ndarray, indices: np.ndarray, shape: np.ndarray) -> Any:
    bcoo = import_module("jax.experimental.sparse").BCOO
    return bcoo((data, indices), shape=tuple(shape.tolist()))


# How to build each kind of leaf from its parts; libraries are imported by these names.
_BUILDERS: dict[str, Callable[..., Any]] = {
    "numpy": lambda array: array,
    "scalar": lambda array: array.item(),
    "torch": _torch,
    "torch bfloat16": lambda array: _torch(array).view(import_module("torch").bfloat16),
    "tensorflow": lambda array: import_module("tensorflow").convert_to_tensor(array),
    "tensorflow sparse": lambda *x: import_module("tensorflow").SparseTensor(*x),
    "tensorflow ragged": lambda values, *splits: import_module(
        "tensorflow"
    ).RaggedTensor.from_nested_row_splits(values, splits),
    "scipy": _scipy,
    "jax": lambda array: import_module("jax.numpy").asarray(array),
    "jax sparse": _jax_sparse,
}
