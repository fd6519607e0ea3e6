"""JAX: XLA reads all of it from the environment, once, when its devices are listed.

XLA's CPU sizes its threads by ``NPROC``, otherwise by the processors of this process.
(``--xla_cpu_multi_thread_eigen=false`` changed no byte of any operation we tried.)
"""

import os
from typing import Any

import jax
from jax._src import xla_bridge  # there is no public way to ask without starting it

from resilient.backends.determinism import environment

_THREADS = "NPROC"


def make_deterministic(threads: int | None) -> None:
    """See ``resilient.deterministic``."""
    started = xla_bridge.backends_are_initialized()
    other = threads is not None and threads != _threads()
    if other and started:
        raise environment.too_late("JAX has started its threads", _threads())
    if other and environment.positive(_THREADS):
        raise environment.conflict(_THREADS, f"Use {_THREADS}={threads} there.")
    if not started:
        environment.make_xla_deterministic()
    elif jax.default_backend() == "gpu" and not environment.xla_is_deterministic():
        raise environment.too_late(
            "JAX has started its devices",
            f"{environment.XLA_FLAGS}={os.environ.get(environment.XLA_FLAGS)}",
        )
    if threads is not None:
        os.environ[_THREADS] = str(threads)


def in_effect() -> dict[str, Any]:
    """See ``resilient.determinism.in_effect``."""
    device = jax.default_backend()
    found: dict[str, Any] = {"device": device}
    if device == "cpu":
        found["threads"] = _threads()
    elif device == "gpu":
        found["deterministic XLA"] = environment.xla_is_deterministic()
    return found


def _threads() -> int:
    return environment.positive(_THREADS) or environment.processors()
