"""Makes a computation repeat bit for bit, and reports what decides whether it does.

Two runs of one program give equal bytes if every kernel sums in the same order. Three
things decide that: the kernels that are chosen, on a GPU; into how many parts a CPU
splits a sum, which depends on the number of threads; and the random numbers.

``deterministic`` sets them. ``in_effect`` reads them at each fit, whoever set them, for
the fingerprint: a resume under other settings warns.

Each backend has a module here; only that of Keras's backend is imported.
"""

import importlib
import sys
from typing import Any

from resilient.backends import get_backend
from resilient.errors import require_integer
from resilient.user_line import ending_at_user_line

__all__ = ["deterministic", "in_effect"]


@ending_at_user_line
def deterministic(seed: int | None = None, *, threads: int | None = None) -> None:
    """Make this process compute the same bytes each time it is run.

    Call it once at the top of the script, after the imports and before anything is
    computed. It holds for the whole process:

    * TensorFlow: ``enable_op_determinism``; deterministic GPU kernels of XLA.
    * JAX: the same for XLA, in ``XLA_FLAGS``. On the CPU, JAX is deterministic already.
    * PyTorch: ``use_deterministic_algorithms``; no cuDNN benchmarking; a fixed
      workspace for cuBLAS, in ``CUBLAS_WORKSPACE_CONFIG``.

    It adds to the environment, and replaces nothing there. Deterministic GPU kernels
    are slower, and where there is none the framework raises. On TensorFlow, a
    ``Dataset.map`` that draws random numbers runs serially, and operations that draw
    without a seed raise. What else it costs, and what it cannot set, is in the
    documentation of the guarantee, under "Determinism".

    Args:
        seed: Also calls ``keras.utils.set_random_seed``, and seeds PyTorch where it is
            loaded, whichever backend trains. A resume continues with the checkpoint's
            random state, whatever the seed.
        threads: How many threads one operation on the CPU uses, on any machine: a
            different number gives different bytes. By default as many as the framework
            was told to use, or as there are cores.

    Raises:
        ResilientError: It was called too late, or the environment conflicts with it;
            nothing was changed.
        TypeError: An argument is not an integer.
        ValueError: An integer is out of range.
    """
    if seed is not None:
        # NumPy takes no others.
        seed = require_integer(seed, "`seed`", least=0, most=2**32 - 1)
    if threads is not None:
        threads = require_integer(threads, "`threads`")
    _module().make_deterministic(threads)
    if seed is not None:
        _seed_all(seed)


def in_effect() -> dict[str, Any]:
    """What decides, now and here, whether sums come out alike: name to JSON value.

    Threads count on a CPU only, and the choice of kernels mostly on a GPU: what does
    not count where this process trains is left out.
    """
    found: dict[str, Any] = _module().in_effect()
    return found


def _module() -> Any:
    return importlib.import_module(f"{__name__}.{get_backend().name}")


def _seed_all(seed: int) -> None:
    import keras

    keras.utils.set_random_seed(seed)
    # Keras does it where torch trains, but loaders of data draw from it in any case.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
