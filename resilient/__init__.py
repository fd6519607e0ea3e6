"""Keras training that can be killed anywhere and resumed bit for bit.

Importing this package loads neither Keras nor a backend; the first fit does.
"""

from typing import TYPE_CHECKING, Any

from resilient._version import __version__
from resilient.backends.determinism import deterministic
from resilient.convert.export import export
from resilient.convert.import_ import import_checkpoint
from resilient.errors import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    DataNotResumableError,
    DataWorkerError,
    DirectoryInUseError,
    DivergedError,
    NotExactError,
    NotExactWarning,
    NotSupportedError,
    PeerLostError,
    Preempted,
    ResilientError,
    RolledBack,
    UntrustedCheckpointError,
)
from resilient.policies import adaptive, best, every, latest, one_per
from resilient.policies.estimator import RunConfig
from resilient.preemption import clouds
from resilient.preemption.requests import Preemption
from resilient.saving.variables_only import Checkpoints
from resilient.storage.remote.options import Upload
from resilient.training.enabled.api import disabled, enabled
from resilient.training.fit.api import ResilientFit, fit
from resilient.training.loop.api import Run
from resilient.training.options import Rollback
from resilient.training.under_way import resumed_from

if TYPE_CHECKING:
    from resilient.training.enabled.callback import BackupAndRestore

__all__ = [
    "BackendNotAvailableError",
    "BackupAndRestore",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointReadError",
    "CheckpointWriteError",
    "Checkpoints",
    "CorruptCheckpointError",
    "DataNotResumableError",
    "DataWorkerError",
    "DirectoryInUseError",
    "DivergedError",
    "NotExactError",
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
    "UntrustedCheckpointError",
    "Upload",
    "__version__",
    "adaptive",
    "best",
    "clouds",
    "deterministic",
    "disabled",
    "enabled",
    "every",
    "export",
    "fit",
    "import_checkpoint",
    "latest",
    "one_per",
    "resumed_from",
]


def __getattr__(name: str) -> Any:
    if name == "BackupAndRestore":  # a callback of Keras: loads it
        from resilient.training.enabled.callback import BackupAndRestore

        return BackupAndRestore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
