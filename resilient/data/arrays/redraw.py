"""Draws the order of an epoch as the backend that began it did, in its own process.

``python -m resilient.data.arrays.redraw`` reads an ``Order`` from its input, and writes
the numbers of the samples: int64, as this machine has them. Two of the libraries in one
process may crash, or take each other's devices. JAX's orders come from NumPy, so they
need no other process.
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
        backend: That began it.
        samples: How many there are.
        batch_size: Of the batches.
        shuffle: As Keras's ``fit`` has it.
        source: What the backend's adapter says of it.
    """

    backend: str
    samples: Count
    batch_size: Count
    shuffle: bool | str
    source: JSON

    def draw(self) -> np.ndarray:
        """The numbers of the samples, on the backend that began it, or of JAX's.

        Raises:
            DataNotResumableError: It cannot be drawn again.
            MalformedError: The checkpoint says nothing that can be drawn from.
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
    """Draw what the input asks for."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever libraries print
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
