"""Keras training that can be killed anywhere and resumed bit for bit.

Importing this package loads no backend and not Keras: that waits for the first fit.
"""

from resilient._version import __version__
from resilient.errors import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    CorruptCheckpointError,
    DataNotResumableError,
    DataWorkerError,
    DirectoryInUseError,
    NotExactWarning,
    NotSupportedError,
    ResilientError,
)
from resilient.fit import ResilientFit, fit
from resilient.policies import best, every, latest

__all__ = [
    "BackendNotAvailableError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointWriteError",
    "CorruptCheckpointError",
    "DataNotResumableError",
    "DataWorkerError",
    "DirectoryInUseError",
    "NotExactWarning",
    "NotSupportedError",
    "ResilientError",
    "ResilientFit",
    "__version__",
    "best",
    "every",
    "fit",
    "latest",
]
