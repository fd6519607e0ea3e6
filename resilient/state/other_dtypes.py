"""Casts a checkpoint's variables to the dtypes that another backend uses.

Keras counts in int64 on TensorFlow and in int32 elsewhere; the state of its seed
generators is int64, uint32 (JAX) or int32 (torch). Values stay the same; a value that
the other dtype cannot hold is an error. (A seed has 32 bits: torch shows them with a
sign.)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resilient.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from resilient.state.variables import Leaf

SEEDS = "seed_generator_state"  # suffix of the paths of such variables
_PLACE = re.compile(r".*?\.\d+(?=\.)")
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (32, 64))
_WORD = (1 << 32) - 1

Saved = Sequence[Mapping[str, Any]]  # as Leaf.to_json


def layout(saved: Saved, live: "Sequence[Leaf]") -> list[dict[str, Any]]:
    """A checkpoint's list, with integers in the dtypes of the live variables.

    Args:
        saved: The list.
        live: The variables that exist already; others stay as listed.
    """
    found = []
    for old, leaf in _pairs(saved, live):
        both = leaf is not None and {old["dtype"], leaf.dtype} <= _INTEGERS
        new = {"dtype": leaf.dtype} if leaf is not None and both else {}
        found.append({**old, **new})
    return found


class Converted(Mapping[str, Any]):
    """The tensors of a checkpoint, each in the dtype of the live variable.

    Args:
        tensors: The tensors, by name.
        saved: The variables that the checkpoint lists.
        live: The existing variables.

    Raises:
        CheckpointMismatchError: On access to a value that this dtype cannot hold.
    """

    def __init__(
        self, tensors: Mapping[str, Any], saved: Saved, live: "Sequence[Leaf]"
    ) -> None:
        self._tensors = tensors
        self._leaves = {
            old["name"]: leaf for old, leaf in _pairs(saved, live) if leaf is not None
        }

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> Any:
        import keras

        value, leaf = self._tensors[name], self._leaves.get(name)
        if leaf is None:
            return value
        held = getattr(leaf.target, "value", leaf.target)  # JAX may hold fewer bits
        return _as(value, keras.backend.standardize_dtype(held.dtype), leaf.path)


def _pairs(
    saved: Saved, live: "Sequence[Leaf]"
) -> "Iterator[tuple[Mapping[str, Any], Leaf | None]]":
    """Each saved variable with its live counterpart, if any."""
    leaves = {place(leaf.name): leaf for leaf in live}
    for old in saved:
        yield old, leaves.get(place(old["name"]))


def place(name: str) -> str:
    """Group, index and a loop's object; Keras may number the rest."""
    found = _PLACE.match(name)
    return found[0] if found else name


def _as(value: np.ndarray, dtype: str, path: str) -> np.ndarray:
    """The same values in another dtype."""
    kinds = {value.dtype.kind, np.dtype(dtype).kind} if dtype != "bfloat16" else set()
    if str(value.dtype) == dtype or not (kinds <= {*"iu"} or kinds == {"f"}):
        return value  # if it does not fit, assigning it will fail
    if path.endswith(SEEDS) and holds(value, "uint32", or_sign=True):
        value = value.astype("int64") & _WORD
        return value.astype("uint32").astype(dtype)
    if not holds(value, dtype):
        raise CheckpointMismatchError(
            f"{path} has values in the checkpoint that this backend's dtype cannot "
            "hold.",
            received=f"{value.dtype}, of which {dtype} cannot hold all values",
            hint="Continue on the backend that saved it.",
        )
    return value.astype(dtype)


def holds(value: np.ndarray, dtype: str, *, or_sign: bool = False) -> bool:
    """Whether a dtype can hold values of the same kind of number.

    Args:
        value: The values.
        dtype: The target dtype.
        or_sign: Whether to accept values whose bits fit the dtype without their sign.
    """
    if value.dtype.kind == "f":
        return np.array_equal(value.astype(dtype), value, equal_nan=True)
    if not value.size:
        return True
    least = np.iinfo("int32").min if or_sign else np.iinfo(dtype).min
    return least <= int(value.min()) and int(value.max()) <= np.iinfo(dtype).max
