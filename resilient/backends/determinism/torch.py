"""PyTorch: flags of the running process, except that cuBLAS reads the determinism.

cuBLAS is deterministic if its workspace is fixed before its first use.
"""

import os
from typing import Any

import torch

from resilient.backends import determinism

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED = (":4096:8", ":16:8")  # deterministic, according to NVIDIA


def make_deterministic(threads: int | None) -> None:
    """See ``resilient.deterministic``."""
    given = os.environ.get(_WORKSPACE)
    if given is not None and given not in _FIXED:
        raise determinism.conflict(_WORKSPACE, f"Use {' or '.join(_FIXED)}, or none.")
    if given is None and torch.cuda.is_initialized():
        raise determinism.too_late("CUDA has already been started", f"no {_WORKSPACE}")
    os.environ.setdefault(_WORKSPACE, _FIXED[0])
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it picks the fastest kernel by racing them
    if threads is not None:
        torch.set_num_threads(threads)


def in_effect() -> dict[str, Any]:
    """See ``resilient.backends.determinism.in_effect``."""
    on_gpu = torch.cuda.is_available()
    found: dict[str, Any] = {
        "device": "gpu" if on_gpu else "cpu",
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    if on_gpu:
        found["cuDNN benchmark"] = bool(torch.backends.cudnn.benchmark)
        found["cuBLAS workspace"] = os.environ.get(_WORKSPACE)
    else:
        found["threads"] = torch.get_num_threads()
    return found
