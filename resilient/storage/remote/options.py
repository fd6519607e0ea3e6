"""How a run is copied to an object store: the user's choices, validated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilient.errors import message, require_number
from resilient.policies import KeepPolicy, keep_policy


@dataclass(frozen=True)
class Upload:
    """How checkpoints are uploaded to an object store.

    Attributes:
        keep_local: Which checkpoints stay in ``local_dir``: a number or a policy, like
            ``keep``, which applies to the object store. Anything not yet uploaded stays
            in any case.
        connections: How many files are sent at the same time. The driver may send parts
            of each at the same time, too.
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
    patience: float = 60.0
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        keep_policy(self.keep_local)
        for name in ("connections", "patience"):
            require_number(getattr(self, name), f"Upload({name}=...)")
        if not isinstance(self.connections, int):
            raise TypeError(
                message(
                    "Upload(connections=...) must be a whole number.",
                    received=repr(self.connections),
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


def checked_upload(value: object) -> Upload:
    """``upload``, or the default for None; TypeError for anything else."""
    if value is None:
        return Upload()
    if isinstance(value, Upload):
        return value
    raise TypeError(
        message("`upload` must be a resilient.Upload or None.", received=repr(value))
    )
