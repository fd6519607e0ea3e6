"""How a run is copied to an object store: what the user may choose, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilient.errors import message, require_number
from resilient.policies import KeepPolicy, keep_policy

# Of a larger file each part is an object of its own. Never to be changed: names tell
# the number of parts, and the size of the file tells theirs.
PART = 16 << 20  # bytes


@dataclass(frozen=True)
class Upload:
    """How checkpoints get to an object store.

    Attributes:
        keep_local: Which checkpoints stay in ``local_dir``: a number, or a policy, as
            for ``keep``, which is about the object store. What is not uploaded yet
            stays in any case.
        connections: How many requests run at the same time.
        memory: Bytes that uploads may hold in memory: each connection takes up to 16
            MiB, so less memory means fewer connections.
        bandwidth: Bytes per second that uploads may use; None for no limit.
        patience: Seconds for which a request is tried again while the store does not
            answer or asks to slow down. After that a warning says so, training goes on,
            and the upload is tried again later.
        storage_options: What fsspec's file system for this store takes (``key``,
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
    """``upload``, or the default for None; otherwise TypeError."""
    if value is None:
        return Upload()
    if isinstance(value, Upload):
        return value
    raise TypeError(
        message("`upload` must be a resilient.Upload or None.", received=repr(value))
    )
