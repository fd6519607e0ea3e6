"""Opens a checkpoint for inspection: what each process saved, without the backend.

Every byte is first verified against the manifest. Large tensors stay on disk until they
are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilient.backends.base import Part
from resilient.errors import CorruptCheckpointError
from resilient.saving import choose
from resilient.saving.part_files import processes, read_part, saver_of
from resilient.saving.run_json import RunJson
from resilient.serialization import Encoded
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.store import Store

_LONGEST = 2000  # characters in a reason


@dataclass(frozen=True)
class ProcessContents:
    """What one process saved.

    Attributes:
        run: The process's ``run.json``.
        position: The encoded position of its data.
        arrays: The arrays that are not variables, by name.
    """

    run: RunJson
    position: Encoded
    arrays: Mapping[str, Any]


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes:
        checkpoint: The checkpoint itself.
        backend: The backend that saved it.
        processes: The contents that each process saved, by number.
        tensors: The variables by name, with one per replica where replicas differ.
    """

    checkpoint: Checkpoint
    backend: str
    processes: list[ProcessContents]
    tensors: Mapping[str, Any]

    @property
    def run(self) -> RunJson:
        return self.processes[0].run


def opened(store: Store, step: int | None) -> Contents:
    """The checkpoint of a step, or the newest one, verified; nothing is changed.

    Raises:
        BackendNotAvailableError: A library needed to read its tensors is missing.
        CheckpointNotFoundError: It does not exist.
        CheckpointReadError: It cannot be read here and now.
        CorruptCheckpointError: It is damaged.
        NotSupportedError: A later version wrote it.
        UntrustedCheckpointError: A key is set, and it is not signed with that key.
    """
    steps = store.steps()
    if not steps:
        raise choose.not_found(store)
    checkpoint = store.read(steps[-1] if step is None else step)
    try:
        return checkpoint.load(_read)
    except DamageError as error:
        if not checkpoint.path.exists():
            raise choose.not_found(checkpoint.path) from None  # just pruned
        raise damaged(checkpoint, str(error)) from None


def damaged(checkpoint: Checkpoint, why: str) -> CorruptCheckpointError:
    """The error for a checkpoint that cannot be compared."""
    return CorruptCheckpointError(
        f"The checkpoint of step {checkpoint.step} is damaged.",
        received=f"{checkpoint.path}: {why[:_LONGEST]}",
        hint="Compare another step; `resilient verify` shows which are intact.",
    )


def _read(checkpoint: Checkpoint) -> Contents:
    backend, count = saver_of(checkpoint), processes(checkpoint)
    found, tensors = [], dict[str, Any]()
    for number in range(count):
        run, position, every = read_part(
            Part(number, count), checkpoint, backend, lazy=True
        )
        arrays = {name: every[name] for name in run.arrays}
        found.append(ProcessContents(run, position, arrays))
        tensors = every | tensors
    return Contents(checkpoint, backend, found, tensors)
