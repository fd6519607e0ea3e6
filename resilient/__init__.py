"""Keras training that can be killed anywhere and resumed bit for bit.

Importing this package loads no backend and not Keras: that waits for the first fit.
"""

from resilient._version import __version__
from resilient.determinism import deterministic
from resilient.divergence import Rollback
from resilient.errors import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    CorruptCheckpointError,
    DataNotResumableError,
    DataWorkerError,
    DirectoryInUseError,
    DivergedError,
    NotExactWarning,
    NotSupportedError,
    PeerLostError,
    Preempted,
    ResilientError,
    RolledBack,
)
from resilient.exporting import export
from resilient.fit import ResilientFit, fit
from resilient.importing import import_checkpoint
from resilient.loop.run import Run
from resilient.policies import auto, best, every, latest, spaced
from resilient.preemption import clouds
from resilient.preemption.options import Preemption
from resilient.run_config import RunConfig
from resilient.variables import Checkpoints

__all__ = [
    "BackendNotAvailableError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointWriteError",
    "Checkpoints",
    "CorruptCheckpointError",
    "DataNotResumableError",
    "DataWorkerError",
    "DirectoryInUseError",
    "DivergedError",
    "NotExactWarning",
    "NotSupportedError",
    "PeerLostError",
    "Preempted",
    "Preemption",
    "ResilientError",
    "ResilientFit",
    "Rollback",
    "RolledBack",
    "Run",
    "RunConfig",
    "__version__",
    "auto",
    "best",
    "clouds",
    "deterministic",
    "every",
    "export",
    "fit",
    "import_checkpoint",
    "latest",
    "spaced",
]
