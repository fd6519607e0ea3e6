"""A JAX pytree: ``run.state``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from resilient.backends.base import Backend
from resilient.backends.jax import like
from resilient.objects.adapters.base import Kind
from resilient.serialization import Encoded, rng
from resilient.serialization.decoding import decode
from resilient.serialization.schema import MalformedError
from resilient.serialization.state_dict import encoded_state, known_in
from resilient.state.variables import Leaf, Variable


class _Pytree(TypedDict):
    paths: list[str]
    keys: dict[str, str]
    plain: dict[str, Any]
    weak: list[int]


class PytreeKind(Kind):
    """A tree whose leaves are arrays, random keys, and plain values."""

    kind: ClassVar[str] = "JAX pytree"
    schema: ClassVar[Any] = _Pytree
    immutable: ClassVar[bool] = True

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        # A leaf may be a function, or of a user-defined class.
        self._known = known_in(self._plain)

    def variables(self) -> Iterable[Variable]:
        for index, (path, leaf) in enumerate(self._leaves()):
            if isinstance(leaf, jax.Array):
                is_key = rng.is_jax_key(leaf)
                yield (
                    "state",
                    index,
                    path,
                    jax.random.key_data(leaf) if is_key else leaf,
                )

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        leaves = self._leaves()
        return {
            "paths": [path for path, _ in leaves],
            "keys": self._keys(),
            "plain": {
                str(index): encoded_state(
                    leaf,
                    arrays,
                    f"{name}.{index}",
                    f"state{leaves[index][0]}",
                    self._known,
                )
                for index, leaf in self._plain().items()
            },
            "weak": [
                index
                for index, (_, leaf) in enumerate(leaves)
                if isinstance(leaf, jax.Array)
                and not rng.is_jax_key(leaf)
                and leaf.weak_type
            ],
        }

    def build(self, saved: Encoded, known: Mapping[str, Any]) -> None:
        """Convert numbers and NumPy arrays to JAX arrays, as a step would."""
        leaves, tree = jax.tree.flatten(self.value)
        if [path for path, _ in self._leaves()] != saved["paths"]:
            return  # reported by ``differences``
        for index, leaf in enumerate(leaves):
            number = isinstance(leaf, int | float | complex | np.ndarray | np.generic)
            if number and str(index) not in saved["plain"]:
                leaves[index] = jnp.asarray(leaf)
        self.value = jax.tree.unflatten(tree, leaves)

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = [path for path, _ in self._leaves()]
        theirs, ours = saved["paths"], live
        found = [
            f"{name}: only the checkpoint has {p}" for p in theirs if p not in ours
        ]
        found += [f"{name}: only this run has {p}" for p in ours if p not in theirs]
        if not found and theirs != ours:
            found = [f"{name}: the leaves are in a different order"]
        if not found and saved["keys"] != self._keys():
            found = [f"{name}: the keys are of different generators, {saved['keys']}"]
        return found

    def assign(
        self,
        backend: Backend,
        layout: Sequence[Mapping[str, Any]],
        live: Sequence[Leaf],
        tensors: Mapping[str, Any],
    ) -> None:
        leaves, tree = jax.tree.flatten(self.value)
        keys = self._keys()
        for old, leaf in zip(layout, live, strict=True):
            index = leaf.slot[1]
            value = like(leaf.target, tensors[old["name"]])
            if str(index) in keys:
                value = rng.jax_key(keys[str(index)], value)
            leaves[index] = value
        self.value = jax.tree.unflatten(tree, leaves)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        leaves, tree = jax.tree.flatten(self.value)
        arrays_of = {i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        plain = {str(i) for i in range(len(leaves))} - {str(i) for i in arrays_of}
        if not (set(saved["plain"]) == plain and set(saved["weak"]) <= arrays_of):
            raise MalformedError("the leaves of a pytree")
        for index, value in saved["plain"].items():
            leaves[int(index)] = decode(value, arrays, self._known)
        for index in saved["weak"]:
            leaves[index] = _weakly_typed(leaves[index])
        self.value = jax.tree.unflatten(tree, leaves)

    def _leaves(self) -> list[tuple[str, Any]]:
        found, _ = jax.tree_util.tree_flatten_with_path(self.value)
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]

    def _plain(self) -> dict[int, Any]:
        """Leaves that are not arrays, by index."""
        return {
            index: leaf
            for index, (_, leaf) in enumerate(self._leaves())
            if not isinstance(leaf, jax.Array)
        }

    def _keys(self) -> dict[str, str]:
        """Index of each random key -> the name of its generator."""
        return {
            str(index): str(jax.random.key_impl(leaf))
            for index, (_, leaf) in enumerate(self._leaves())
            if rng.is_jax_key(leaf)
        }


def _weakly_typed(array: jax.Array) -> jax.Array:
    """The array with a weak dtype, like that of a Python number.

    Without it, a run in bfloat16 would continue in float32. JAX makes weak types from
    numbers only, hence a zero whose elements are set.
    """
    number = array.dtype.type(0).item()

    def weak(value: jax.Array) -> jax.Array:
        return lax.broadcast(jnp.asarray(number), value.shape).at[...].set(value)

    where = array.sharding if array.committed else None
    found: jax.Array = jax.jit(weak, out_shardings=where)(array)
    assert found.dtype == array.dtype, array.dtype
    return found
