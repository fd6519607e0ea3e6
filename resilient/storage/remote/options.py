"""How a run is copied to an object store: the user's choices, validated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilient.errors import message, require_number
from resilient.policies import KeepPolicy, keep_policy

# Each part of a larger file is an object of its own. Never change this: names give the
# number of parts, and the file size gives the size of each.
PART = 16 << 20  # bytes


@dataclass(frozen=True)
class Upload:
    """How checkpoints are uploaded to an object store.

    Attributes:
        keep_local: Which checkpoints stay in ``local_dir``: a number or a policy, like
            ``keep``, which applies to the object store. Anything not yet uploaded stays
            in any case.
        connections: How many requests run at the same time.
        memory: Bytes that uploads may hold in memory. Each connection takes up to 16
            MiB, so less memory means fewer connections.
        bandwidth: Bytes per second that uploads may use; None for no limit.
        patience: Seconds for which a request is retried while the store does not answer
            or asks to slow down. After that a warning says so, training goes on, and
            the upload is retried later.
        storage_options: Arguments of fsspec's file system for this store (``key``,
            ``endpoint_url``, ``token``...). They are never saved, printed or logged.

    Raises:
        TypeError: An attribute has the wrong type.
        ValueError: A number is not positive.
    """

    keep_local: int | KeepPolicy = 2
    connections: int = 4
    memory: int = 128 << 20
    bandwidth: float | None = None
    patience: float = 60.0
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        keep_policy(self.keep_local)
        for name in ("connections", "memory", "bandwidth", "patience"):
            value = getattr(self, name)
            if value is not None or name != "bandwidth":
                require_number(value, f"Upload({name}=...)")
        whole = (self.connections, self.memory)
        if not all(isinstance(each, int) for each in whole):
            raise TypeError(
                message(
                    "Upload(connections=..., memory=...) must be whole numbers.",
                    received=repr(whole),
                )
            )
        if not isinstance(self.storage_options, Mapping):
            raise TypeError(
                message(
                    "Upload(storage_options=...) must be a dict of what fsspec's file "
                    "system takes.",
                    received=type(self.storage_options).__name__,
                )
            )

    @property
    def threads(self) -> int:
        """How many requests run at the same time, within the memory."""
        return max(1, min(self.connections, self.memory // PART))


def checked_upload(value: object) -> Upload:
    """``upload``, or the default for None; TypeError for anything else."""
    if value is None:
        return Upload()
    if isinstance(value, Upload):
        return value
    raise TypeError(
        message("`upload` must be a resilient.Upload or None.", received=repr(value))
    )
