"""Redraws the order of an epoch with the backend that began it, in its own process.

``python -m resilient.data.arrays.redraw`` reads an ``Order`` from stdin, and writes the
sample numbers as int64 in this machine's byte order. Two of the libraries in one
process may crash, or take each other's devices. JAX's orders come from NumPy, so they
need no separate process.
"""

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from resilient.errors import ResilientError
from resilient.serialization import JSON
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import Count, from_json, parse, taking

ADAPTERS = {
    "tensorflow": ("arrays.tensorflow", "TensorFlowArrays"),
    "jax": ("arrays.jax", "JaxArrays"),
    "torch": ("arrays.torch", "TorchArrays"),
}
FAILED = 3  # exit status: an error of ours is on stderr


@dataclass(frozen=True)
class Order:
    """The order of an epoch.

    Attributes:
        backend: The backend that began it.
        samples: How many there are.
        batch_size: The batch size.
        shuffle: As in Keras's ``fit``.
        source: What the backend's adapter saved about it.
    """

    backend: str
    samples: Count
    batch_size: Count
    shuffle: bool | str
    source: JSON

    def draw(self) -> np.ndarray:
        """The sample numbers, drawn by the backend that began it, or for JAX.

        Raises:
            DataNotResumableError: It cannot be drawn again.
            MalformedError: The checkpoint holds nothing to draw from.
        """
        module, name = ADAPTERS[self.backend]
        adapter: Any = getattr(
            importlib.import_module(f"resilient.data.{module}"), name
        )
        numbers, size = np.arange(self.samples), self.batch_size
        data = adapter(numbers, batch_size=size, shuffle=self.shuffle)
        position = DataPosition(drawn=0, source=self.source).of(data.schema)
        data.require_same_orders(position)
        with taking("the order of the data"):
            return np.asarray(data.order_again(position.source), "int64")


def main() -> int:
    """Draw the order that stdin asks for."""
    output = os.dup(1)
    os.dup2(2, 1)  # keep what libraries print out of the output
    try:
        drawn = from_json(Order, parse(sys.stdin.buffer.read())).draw()
    except ResilientError as error:
        told = {
            "problem": error.problem,
            "received": error.received,
            "hint": error.hint,
        }
        sys.stderr.buffer.write(b"\n" + msgspec.json.encode(told))
        return FAILED
    with open(output, "wb") as file:
        file.write(drawn.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
