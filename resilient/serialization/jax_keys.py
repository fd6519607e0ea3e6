"""Typed keys of JAX, ``jax.random.key()``: arrays that NumPy does not know."""

from typing import Any

import numpy as np


def is_key(value: Any) -> bool:
    """Whether it is one, or an array of them."""
    if type(value).__module__.partition(".")[0] not in ("jax", "jaxlib"):
        return False
    return str(getattr(value, "dtype", "")).startswith("key<")


def content(key: Any) -> tuple[str, np.ndarray]:
    """The name of its generator, and its words."""
    import jax

    return str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key))


def made(name: str, words: np.ndarray) -> Any:
    """The key whose content this was."""
    import jax

    return jax.random.wrap_key_data(words, impl=name)
