"""One process tests one backend, that of KERAS_BACKEND, quietly and on one thread.

The environment is set before any backend is imported, so that child processes inherit
it. Nothing here imports Keras: some tests show that the library does not either.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import BACKENDS
from support.compiling import compile_once
from support.waited import each_save_waited_for

if TYPE_CHECKING:
    from resilient.backends import Backend

pytest_plugins = ["support.sessions", "support.witnessed"]

if os.environ.get("KERAS_BACKEND") not in BACKENDS:
    raise pytest.UsageError(
        f"The tests run on one backend at a time.\n"
        f"Received: KERAS_BACKEND={os.environ.get('KERAS_BACKEND')!r}\n"
        f"Set KERAS_BACKEND to one of {', '.join(BACKENDS)}, or run `nox`."
    )

# A shell that starts us in the background has us, and whatever we start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Equal bytes are compared: one thread sums in one order. (On two cores shared by two
# test processes it is also the fastest.)
os.environ |= {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


# JAX compiles what two tests have alike once; each process has its own cache, for none
# is made to be read while another one writes.
_compiled = tempfile.TemporaryDirectory(prefix="compiled-")
os.environ |= compile_once(Path(_compiled.name))


@pytest.fixture(autouse=True)
def waited_for_where_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Saves go on in the background, as for users, but in tests marked ``waits``."""
    if request.node.get_closest_marker("waits") is None:
        yield
    else:
        with each_save_waited_for():
            yield


@pytest.fixture(autouse=True)
def once_is_without_keras(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a test that depends on the backend would run on one of them only."""
    if request.node.get_closest_marker("once") is not None:
        assert not {"keras", "fitting"} & set(vars(request.module))
        monkeypatch.setitem(sys.modules, "keras", None)  # importing it fails


@pytest.fixture(autouse=True)
def iterators_end_with_their_test() -> Iterator[None]:
    """Not in the middle of another one, when the garbage happens to be collected.

    The longer they are left the longer their end can take: TensorFlow waits for a
    thread that tunes the pipeline, which looks around once a minute in the end; torch
    five seconds for each worker process.
    """
    yield
    gc.collect()
    gc.freeze()  # what is alive is not looked at again, which makes this fast


@pytest.fixture(scope="session")
def backend() -> str:
    """The Keras backend under test."""
    return os.environ["KERAS_BACKEND"]


@pytest.fixture(scope="session")
def adapter(backend: str) -> "Backend":
    """The adapter of the backend under test."""
    from resilient.backends import get_backend

    return get_backend(backend)


@pytest.fixture(scope="session")
def child_environment() -> dict[str, str]:
    """Environment for child processes, which find the same `resilient` as we do."""
    import resilient

    ours = str(Path(resilient.__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join([ours, *sys.path])}


@pytest.fixture
def seeded(repeating: None) -> None:
    """Every global generator seeded, the backend deterministic."""
    import keras

    keras.utils.set_random_seed(7)


@pytest.fixture(scope="session")
def repeating(backend: str) -> None:
    """The backend is deterministic: on the CPU the others are with what is above."""
    if backend == "torch":
        import torch

        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
