"""Casts a checkpoint's variables to the dtypes that another backend uses.

Keras counts in int64 on TensorFlow and in int32 elsewhere; the state of its seed
generators is int64, uint32 (JAX) or int32 (torch). Values stay the same; a value that
the other dtype cannot hold is an error. (A seed has 32 bits: torch shows them with a
sign.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from resilient.errors import CheckpointMismatchError
from resilient.serialization import JSON
from resilient.state.variables import Leaf, Saved, matched

_SEEDS = "seed_generator_state"  # suffix of the paths of such variables
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (32, 64))
_WORD = (1 << 32) - 1


def cast(
    saved: Saved, tensors: Mapping[str, Any], live: Sequence[Leaf]
) -> tuple[list[JSON], dict[str, Any]]:
    """A checkpoint's list of variables and its tensors, in the dtypes of the live ones.

    Args:
        saved: The list.
        tensors: The tensors, by name.
        live: The variables that exist already; others stay as listed.

    Raises:
        CheckpointMismatchError: A dtype cannot hold a value.
    """
    found, arrays = {each["name"]: each for each in saved}, dict(tensors)
    for old, leaf in matched(saved, live):
        name = old["name"]
        if {old["dtype"], leaf.dtype} <= _INTEGERS:
            found[name] = {**old, "dtype": leaf.dtype}
        held = getattr(leaf.target, "value", leaf.target)  # JAX may hold fewer bits
        dtype = keras.backend.standardize_dtype(held.dtype)
        arrays[name] = _as(arrays[name], dtype, leaf.path)
    return [*found.values()], arrays


def _as(value: np.ndarray, dtype: str, path: str) -> np.ndarray:
    """The same values in another dtype."""
    kinds = {value.dtype.kind, np.dtype(dtype).kind} if dtype != "bfloat16" else set()
    if str(value.dtype) == dtype or not (kinds <= {*"iu"} or kinds == {"f"}):
        return value  # if it does not fit, assigning it will fail
    new = value.astype(dtype)
    fits = np.array_equal(new, value, equal_nan=True)
    if path.endswith(_SEEDS):
        new = (value.astype("int64") & _WORD).astype("uint32").astype(dtype)
        fits = bool(value.min() >= -(1 << 31) and value.max() <= _WORD)
    if not fits:
        raise CheckpointMismatchError(
            f"{path} has values in the checkpoint that this backend's dtype cannot "
            "hold.",
            received=f"{value.dtype}, of which {dtype} cannot hold all values",
            hint="Continue on the backend that saved it.",
        )
    return new
