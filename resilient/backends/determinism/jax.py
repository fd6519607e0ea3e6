"""JAX: XLA reads everything from the environment once, when its devices are listed.

XLA's CPU sizes its threads by ``NPROC``, otherwise by the processors of this process.
(``--xla_cpu_multi_thread_eigen=false`` changed no byte of any operation we tried.)
"""

import os
from typing import Any

import jax
from jax._src import xla_bridge  # there is no public way to ask without starting it

from resilient.backends import determinism

_THREADS = "NPROC"


def make_deterministic(threads: int | None) -> None:
    """See ``resilient.deterministic``."""
    started = xla_bridge.backends_are_initialized()
    live = determinism.threads_by(_THREADS)
    flags = determinism.deterministic_xla_flags()
    if threads not in (None, live):
        if started:
            raise determinism.too_late("JAX has already started its threads", live)
        if determinism.asked_for(_THREADS):
            raise determinism.conflict(_THREADS, f"Set {_THREADS}={threads}.")
    if not started:
        os.environ[determinism.XLA_FLAGS] = flags
    elif jax.default_backend() == "gpu" and flags != determinism.xla_flags():
        raise determinism.too_late("JAX has already started its devices", in_effect())
    if threads is not None:
        os.environ[_THREADS] = str(threads)


def in_effect() -> dict[str, Any]:
    """See ``resilient.backends.determinism.in_effect``."""
    found: dict[str, Any] = {"device": jax.default_backend()}
    if found["device"] == "cpu":
        found["threads"] = determinism.threads_by(_THREADS)
    elif found["device"] == "gpu":
        found[determinism.XLA_FLAGS] = determinism.xla_flags()
    return found
