"""Saves PyTorch's global random generators: the CPU's, and each CUDA device's."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from resilient.errors import NotExactWarning


class TorchGenerators:
    """All of them together."""

    def random_state(self) -> dict[str, Any]:
        """Their states, as bytes."""
        return {
            "cpu": _state(torch.default_generator),
            "cuda": [_state(each) for each in _cuda_generators()],
        }

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Set what ``random_state`` returned; warn if the devices have changed."""
        _set_state(torch.default_generator, state["cpu"])
        live, saved = _cuda_generators(), state["cuda"]
        if len(live) != len(saved):
            warnings.warn(
                f"Random numbers drawn on CUDA devices will differ: the checkpoint was "
                f"saved with {len(saved)} devices, this process has {len(live)}.",
                NotExactWarning,
                stacklevel=3,
            )
        for generator, device_state in zip(live, saved, strict=False):
            _set_state(generator, device_state)


def _state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()  # type: ignore[no-any-return]


def _set_state(generator: torch.Generator, state: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _cuda_generators() -> Sequence[torch.Generator]:
    """The global generator of each CUDA device."""
    if not torch.cuda.is_available():
        return ()
    torch.cuda.init()  # before, there are none
    generators: Sequence[torch.Generator] = torch.cuda.default_generators
    return generators


GENERATORS = TorchGenerators()
