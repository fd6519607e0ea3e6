"""safetensors, with the functions that it has for each backend."""

import importlib
from typing import Any

import keras
import safetensors  # noqa: F401  # the parts below need it and their backend
from state import BACKEND, assign, tensors
from subjects import Peer

_format = importlib.import_module(
    f"safetensors.{'flax' if BACKEND == 'jax' else BACKEND}"
)


class Safetensors(Peer):
    """`save_file` and `load_file`."""

    name = "safetensors"

    def save(self) -> None:
        """One file."""
        live = tensors(self.model)
        # TensorFlow's scalars become numpy's, which it cannot save.
        live |= {name: _shaped(live[name], (1,)) for name in self._scalars()}
        _format.save_file(live, self.new_path())

    def restore(self) -> None:
        """Copied into the live tensors."""
        saved = _format.load_file(self.path())
        saved |= {name: _shaped(saved[name], ()) for name in self._scalars()}
        assign(self.model, saved)

    def _scalars(self) -> list[str]:
        return [
            name for name, value in tensors(self.model).items() if not len(value.shape)
        ]


def _shaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    return keras.ops.reshape(tensor, shape)


KINDS = [Safetensors]
