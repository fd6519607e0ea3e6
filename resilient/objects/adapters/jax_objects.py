"""A JAX pytree: ``run.state``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from resilient.backends.jax import like
from resilient.objects.adapters.base import StatefulKind
from resilient.serialization import JSON, rng
from resilient.state import variables
from resilient.state.variables import Variable


class PytreeKind(StatefulKind):
    """A tree whose leaves are arrays, random keys, and plain values."""

    kind: ClassVar[str] = "JAX pytree"

    def variables(self) -> Iterable[Variable]:
        for index, (path, leaf) in enumerate(self._leaves()):
            if isinstance(leaf, jax.Array):
                is_key = rng.is_jax_key(leaf)
                value = jax.random.key_data(leaf) if is_key else leaf
                yield "state", index, path, value

    def facts(self) -> JSON:
        leaves = self._leaves()
        found = {path: _described(leaf) for path, leaf in leaves}
        return {**found, " leaves": [path for path, _ in leaves]}

    def state(self) -> Any:
        """Leaves that are not arrays, by path, and paths of arrays of weak types."""
        leaves = self._leaves()
        return {
            **{path: leaf for path, leaf in leaves if not isinstance(leaf, jax.Array)},
            "weak": [
                path for path, leaf in leaves if getattr(leaf, "weak_type", False)
            ],
        }

    def build(self, saved: JSON, places: Mapping[str, Any]) -> None:
        """Convert numbers and NumPy arrays to JAX arrays, as a step would."""
        facts = saved["class"]
        self._replace(
            lambda path, leaf: (
                jnp.asarray(leaf)
                if isinstance(leaf, _CONVERTED) and facts.get(path) == _ARRAY
                else leaf
            )
        )

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        # Paths are equal, and with them the names of variables.
        found = [variables.leaf(*variable, of="state") for variable in self.variables()]
        values = {x.path: like(x.target, tensors[x.name]) for x in found}

        def new(path: str, leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array):
                return state[path]
            if rng.is_jax_key(leaf):
                return rng.jax_key(str(jax.random.key_impl(leaf)), values[path])
            is_weak = path in state["weak"]
            return _weakly_typed(values[path]) if is_weak else values[path]

        self._replace(new)

    def _leaves(self) -> list[tuple[str, Any]]:
        found, _ = jax.tree_util.tree_flatten_with_path(self.value)
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]

    def _replace(self, new: Callable[[str, Any], Any]) -> None:
        """Replace each leaf, given its path and itself."""
        leaves = [new(path, leaf) for path, leaf in self._leaves()]
        self.value = jax.tree.unflatten(jax.tree.structure(self.value), leaves)


_ARRAY = "an array"
# What a step returns as arrays.
_CONVERTED = (int, float, complex, np.ndarray, np.generic)


def _described(leaf: Any) -> str:
    if rng.is_jax_key(leaf):
        return f"a key of {jax.random.key_impl(leaf)}"
    return _ARRAY if isinstance(leaf, jax.Array) else "a value"


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
