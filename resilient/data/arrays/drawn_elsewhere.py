"""Continues the order of arrays in an epoch that another backend began.

Each backend draws orders in its own way, and only its library can redraw one; JAX's
come from NumPy. The end of an epoch needs none of this.
"""

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Literal, TypedDict

import msgspec
import numpy as np

from resilient.data.arrays.redraw import FAILED, Order
from resilient.errors import DataNotResumableError
from resilient.serialization import JSON
from resilient.serialization.schema import to_json

if TYPE_CHECKING:
    from resilient.data.arrays.jax import SeekableArrays

_AT_ITS_END = (
    "Or continue from the end of an epoch: pass resume=<step> with the step of a "
    "checkpoint at batch 0 (see `resilient ls`)."
)


class DrawnBy(TypedDict):
    """Which backend drew an order, and what its adapter saved about it."""

    backend: Literal["tensorflow", "jax", "torch"]
    source: JSON


def order(drawn: DrawnBy, data: "SeekableArrays") -> np.ndarray:
    """The sample numbers in the order of the whole epoch, as int64.

    Args:
        drawn: The backend that drew it.
        data: The same arrays, here.

    Raises:
        DataNotResumableError: It cannot be drawn again here.
        MalformedError: It holds nothing to draw from.
    """
    backend = drawn["backend"]
    if data.shuffled == "batch":
        raise DataNotResumableError(
            'With shuffle="batch", the rest of an epoch cannot continue on another '
            "backend: each batch draws its own order.",
            received=f"an epoch that {backend} began",
            hint=f"Set KERAS_BACKEND={backend} until it ends. {_AT_ITS_END}",
        )
    size, shuffle = int(data.batch_size), bool(data.shuffled)
    asked = Order(backend, data.samples, size, shuffle, drawn["source"])
    found = asked.draw() if backend == "jax" else _drawn_apart(asked)
    if not np.array_equal(np.sort(found), np.arange(data.samples)):
        raise _cannot_be_drawn(backend, "not every sample once")
    return found


def _drawn_apart(asked: Order) -> np.ndarray:
    """The same order, drawn in a process with that backend."""
    told = {
        "KERAS_BACKEND": asked.backend,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "resilient.data.arrays.redraw"],
        input=msgspec.json.encode(to_json(asked)),
        capture_output=True,
        env=os.environ | told,
        check=False,
    )
    last = done.stderr.rpartition(b"\n")[2] if done.returncode == FAILED else b""
    if last:
        raise DataNotResumableError(**msgspec.json.decode(last))
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise _cannot_be_drawn(asked.backend, lines[-1] if lines else "no answer")
    return np.frombuffer(done.stdout, "int64")


def _cannot_be_drawn(backend: str, why: str) -> DataNotResumableError:
    return DataNotResumableError(
        f"The order of this epoch was drawn by {backend}, which cannot draw the rest "
        "of it here.",
        received=why[:500],
        hint=f"Install that backend as well: pip install {backend}. {_AT_ITS_END}",
    )
