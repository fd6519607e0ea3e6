"""Makes computation deterministic, and reports the settings that decide whether it is.

Two runs of one program give equal bytes if every kernel sums in the same order. That
depends on three things: which kernels a GPU uses; into how many parts a CPU splits a
sum, which follows from the number of threads; and the random numbers.

``deterministic`` sets them. ``in_effect`` reads them at each fit, whoever set them, for
the fingerprint: a resume under different settings warns.

Each backend has a module here; only the one for Keras's backend is imported. They share
what is here about the environment variables that frameworks read.
"""

import importlib
import os
import re
import sys
from typing import Any

from resilient.backends import get_backend
from resilient.errors import ResilientError, require_integer
from resilient.user_line import ending_at_user_line

__all__ = ["deterministic", "in_effect"]

XLA_FLAGS = "XLA_FLAGS"
# No nondeterministic kernels, and none chosen by racing them. (TensorFlow's op
# determinism does not rule out the latter in all releases.)
_DETERMINISTIC = "--xla_gpu_deterministic_ops"


@ending_at_user_line
def deterministic(seed: int | None = None, *, threads: int | None = None) -> None:
    """Make this process deterministic: the same bytes each time it runs.

    Call it once at the top of the script, after the imports and before anything is
    computed. It holds for the whole process:

    * TensorFlow: ``enable_op_determinism``; deterministic GPU kernels of XLA.
    * JAX: the same for XLA, in ``XLA_FLAGS``. On the CPU, JAX is deterministic already.
    * PyTorch: ``use_deterministic_algorithms``; no cuDNN benchmarking; a fixed
      workspace for cuBLAS, in ``CUBLAS_WORKSPACE_CONFIG``.

    It adds to environment variables and never replaces a value in them. Deterministic
    GPU kernels are slower, and the framework raises where there is none. On TensorFlow,
    a ``Dataset.map`` that draws random numbers runs serially, and random operations
    without a seed raise. The documentation of the guarantee lists its other costs and
    what it cannot set, under "Determinism".

    Args:
        seed: Also call ``keras.utils.set_random_seed`` with it, and seed PyTorch if it
            is loaded, whichever backend trains. A resume continues with the
            checkpoint's random state, whatever the seed.
        threads: How many threads one CPU operation uses, on any machine: a different
            number gives different bytes. By default, the number that the framework was
            told to use, or else the number of cores.

    Raises:
        ResilientError: It was called too late, or the environment conflicts with it.
            Nothing was changed.
        TypeError: An argument is not an integer.
        ValueError: An integer is out of range.
    """
    if seed is not None:
        # NumPy takes no other seeds.
        seed = require_integer(seed, "`seed`", least=0, most=2**32 - 1)
    if threads is not None:
        threads = require_integer(threads, "`threads`")
    _module().make_deterministic(threads)
    if seed is not None:
        import keras

        keras.utils.set_random_seed(seed)
        # Keras does so only where torch trains, but data loaders draw from it anyway.
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)


def in_effect() -> dict[str, Any]:
    """The settings that decide whether sums are reproducible here: name to JSON value.

    Threads matter only on a CPU, and the choice of kernels mostly on a GPU: whatever
    does not matter where this process trains is left out.
    """
    found: dict[str, Any] = _module().in_effect()
    return found


def _module() -> Any:
    return importlib.import_module(f"{__name__}.{get_backend().name}")


def xla_flags() -> str:
    """XLA's flags, which it reads when it starts."""
    return os.environ.get(XLA_FLAGS, "").strip()


def deterministic_xla_flags() -> str:
    """The same with deterministic GPU kernels.

    Raises:
        ResilientError: They conflict. XLA takes anything that does not look like a flag
            as the name of a file of flags, to which nothing can be added here.
    """
    flags = xla_flags()
    if flags and not flags.startswith("-"):
        raise conflict(
            XLA_FLAGS, "Put the flags themselves there, not the name of a file."
        )
    asked = re.findall(rf"{_DETERMINISTIC}(?:=(\S*))?(?:\s|$)", flags)
    if asked and asked[-1].lower() not in ("", "1", "true"):  # the last one wins
        raise conflict(XLA_FLAGS, f"Remove {_DETERMINISTIC} from it.")
    return flags if asked else f"{flags} {_DETERMINISTIC}=true".strip()


def threads_by(variable: str) -> int:
    """The threads that a variable asks for; by default, this process's processors."""
    return asked_for(variable) or processors()


def asked_for(variable: str) -> int | None:
    """A positive number in a variable, if there is one."""
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def conflict(variable: str, todo: str) -> ResilientError:
    """The error for a variable that conflicts."""
    return ResilientError(
        "An environment variable conflicts with deterministic(), which does not "
        "overwrite it.",
        received=f"{variable}={os.environ.get(variable)}",
        hint=todo,
    )


def too_late(what: str, received: object) -> ResilientError:
    """The error for a call after a framework has read its settings."""
    return ResilientError(
        f"deterministic() was called too late: {what}.",
        received=received,
        hint="Call it at the top of the script, before anything is computed.",
    )
