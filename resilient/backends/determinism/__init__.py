"""Makes a computation repeat bit for bit, and knows what decides whether it does.

Two runs of one program give equal bytes if every kernel sums in the same order. Three
things decide that: the kernels that are chosen, on a GPU; into how many parts a CPU
splits a sum, which goes by the number of threads; and the random numbers.

``deterministic`` sets them. ``in_effect`` reads them at each fit, whoever set them, for
the fingerprint: a resume under others is said.

Each backend has a module here, imported for the backend that Keras runs on alone.
"""

import importlib
import sys
from numbers import Integral
from typing import Any

from resilient.backends import get_backend
from resilient.errors import message

__all__ = ["deterministic", "in_effect"]

_SEEDS = range(2**32)  # those that NumPy takes


def deterministic(seed: int | None = None, *, threads: int | None = None) -> None:
    """Make this process compute the same bytes each time it is run.

    Call it once at the top of the script, after the imports and before anything is
    computed. What it sets holds for the whole process:

    * TensorFlow: ``enable_op_determinism``; no choosing of XLA's GPU kernels by speed.
    * JAX: the same of XLA, in ``XLA_FLAGS``. On the CPU JAX repeats as it is.
    * PyTorch: ``use_deterministic_algorithms``; no choosing of cuDNN's kernels by
      speed; a fixed workspace for cuBLAS, in ``CUBLAS_WORKSPACE_CONFIG``.

    What the environment says already is added to and never replaced.

    It has a price. GPU kernels that repeat are slower, and where there is none the
    framework raises. On TensorFlow a ``Dataset.map`` that draws random numbers runs
    serially, operations that draw without any seed raise, and the bytes are other ones
    than without, on the CPU too. On the CPU of JAX nothing changes.

    The same number of threads is needed too: another number gives other bytes on the
    CPU of each backend. By default a framework uses as many as it finds cores, so a
    run that moves to a machine with more cores is no longer bit-exact (and a resume
    there says so). ``threads`` fixes the number, wherever the run goes; of more cores
    it makes no use, and on fewer it is slower.

    Not set, since a running process cannot change it: ``PYTHONHASHSEED``, by which a
    set of strings is ordered. Sort such a set where its order matters.

    Args:
        seed: Also calls ``keras.utils.set_random_seed``, and seeds PyTorch where it is
            loaded, whichever backend trains. A resume goes on with the checkpoint's
            random state, whatever the seed.
        threads: How many threads one operation on the CPU uses; without it, what the
            framework was told or finds.

    Raises:
        ResilientError: It comes too late for something, or the environment says the
            contrary; nothing was changed.
        TypeError: Of an argument that is no integer.
        ValueError: Of an integer out of range.
    """
    if seed is not None:
        seed = _integer("seed", seed)
        if seed not in _SEEDS:
            raise _out_of_range("seed", seed, "from 0 to 2**32 - 1")
    if threads is not None:
        threads = _integer("threads", threads)
        if threads < 1:
            raise _out_of_range("threads", threads, "of at least 1")
    _of(get_backend().name).make_deterministic(threads)
    if seed is not None:
        _seed_all(seed)


def in_effect() -> dict[str, Any]:
    """What decides, now and here, whether sums come out alike: name to JSON value.

    Threads count on a CPU only, and the choice of kernels mostly on a GPU: what does
    not count where this process trains is left out.
    """
    found: dict[str, Any] = _of(get_backend().name).in_effect()
    return found


def _of(backend: str) -> Any:
    """The module here of a backend."""
    return importlib.import_module(f"{__name__}.{backend}")


def _seed_all(seed: int) -> None:
    import keras

    keras.utils.set_random_seed(seed)
    # Keras does it where torch trains, but loaders of data draw from it in any case.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _integer(name: str, value: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError(
        message(
            f"`{name}` is an integer.",
            received=repr(value),
            hint=f"Call resilient.deterministic({name}=7), say.",
        )
    )


def _out_of_range(name: str, value: int, allowed: str) -> ValueError:
    return ValueError(
        message(f"`{name}` must be an integer {allowed}.", received=value)
    )
