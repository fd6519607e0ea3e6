"""Reads and checks the files of one process's part of a checkpoint.

A checkpoint is data, whoever wrote it, and a malformed file counts as damage. Only
files that the manifest lists are opened.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from resilient import backends
from resilient.backends.base import ALONE, Backend, Part
from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    ResilientError,
)
from resilient.saving.run_json import RunJson, decoded, require_restorable
from resilient.saving.snapshot import UNCHANGED, VARIABLES, paths
from resilient.serialization import Encoded
from resilient.serialization.decoding import check, outline
from resilient.serialization.known import NotKnownError
from resilient.serialization.position import Positions
from resilient.serialization.schema import (
    MalformedError,
    from_json,
    parse,
)
from resilient.storage.checkpoint import Checkpoint

_REPLICA = re.compile(r"\.replica_\d+\Z")


def processes(checkpoint: Checkpoint) -> int:
    """How many processes saved."""
    found = {name for name in checkpoint.files if name.startswith("data/process-")}
    expected = {paths(Part(k, len(found)))[1] for k in range(len(found))}
    if not found or found != expected:
        raise CorruptCheckpointError(
            f"{checkpoint.path} does not have exactly the data of the processes that "
            "saved it.",
            received=f"missing: {_some(expected - found) or 'all'}, "
            f"unexpected: {_some(found - expected) or 'none'}",
            hint=ANOTHER_STEP,
        )
    return len(found)


def read_part(
    backend: Backend, part: Part, checkpoint: Checkpoint, saver: str | None = None
) -> tuple[RunJson, Encoded, dict[str, Any]]:
    """The run, the position in the data, and the tensors.

    Args:
        backend: The backend that reads.
        part: The process's part.
        checkpoint: The checkpoint.
        saver: The backend that saved it, if different.

    Raises:
        CorruptCheckpointError: A file is missing, violates its schema, or does not
            match the others.
    """

    def tensors(folder: str) -> dict[str, Any]:
        if saver is None:
            return backend.read(folder, part)
        found = backends.read(saver, folder, ALONE)
        return {name: np.asarray(tensor) for name, tensor in found.items()}

    run, position, found = _read(part, checkpoint, tensors)
    # Everything except variables must be complete.
    own = {name: np.asarray(found[name]) for name in run.arrays}
    _require_well_formed(part, checkpoint, run, position, own)
    with malformed(str(checkpoint.path / paths(part)[0])):
        require_restorable(run, backend, own)
    return run, position, {**found, **own}


def look_at_part(
    part: Part, checkpoint: Checkpoint, saver: str
) -> tuple[RunJson, Encoded, dict[str, Any]]:
    """The same without the backend that saved: nothing is restored.

    Large tensors stay on the disk: ``numpy.asarray`` reads one.

    Raises:
        BackendNotAvailableError: A library that reads its format is missing.
        CorruptCheckpointError: As ``read_part``.
    """

    def tensors(folder: str) -> dict[str, Any]:
        return backends.read(saver, folder, part, lazy=True)

    run, position, found = _read(part, checkpoint, tensors)
    own = {name: found[name] for name in run.arrays}
    _require_well_formed(part, checkpoint, run, position, own)
    return run, position, found


def _read(
    part: Part,
    checkpoint: Checkpoint,
    tensors: Callable[[str], dict[str, Any]],
) -> tuple[RunJson, Encoded, dict[str, Any]]:
    of_run, of_data = paths(part)
    with malformed(str(checkpoint.path / of_run)):
        run = decoded(parse(checkpoint.content(of_run)))
    with malformed(str(checkpoint.path / of_data)):
        position = parse(checkpoint.content(of_data))
    found = _all_tensors(checkpoint, tensors)
    _require_complete(run, set(found), checkpoint)
    return run, position, found


def _all_tensors(
    checkpoint: Checkpoint, read: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """The tensors that changed, and those that did not."""
    variables = checkpoint.path / VARIABLES
    found = read(str(variables))
    inside = f"{VARIABLES}/{UNCHANGED}/"
    if not any(name.startswith(inside) for name in checkpoint.files):
        return found
    others = read(str(variables / UNCHANGED))
    if twice := found.keys() & others.keys():
        raise CorruptCheckpointError(
            f"{checkpoint.path} holds tensors twice.",
            received=_some(twice),
            hint=ANOTHER_STEP,
        )
    return found | others


def _require_well_formed(
    part: Part,
    checkpoint: Checkpoint,
    run: RunJson,
    position: Encoded,
    own: Mapping[str, Any],
) -> None:
    """Raise where a value that is encoded is not what was written."""
    of_run, of_data = paths(part)
    with malformed(str(checkpoint.path / of_run)):
        check(vars(run), own)
    with malformed(str(checkpoint.path / of_data)):
        from_json(Positions, outline(position, own))


def _require_complete(run: RunJson, there: set[str], checkpoint: Checkpoint) -> None:
    """Raise if ``run.json`` names missing tensors."""
    expected = {*run.tensors, *run.arrays}
    of_replicas = {_REPLICA.sub("", name) for name in there}
    missing = expected - there
    missing |= {v["name"] for v in run.variables} - there - of_replicas
    if missing:
        raise CorruptCheckpointError(
            f"{checkpoint.path} does not hold the tensors that it lists.",
            received=f"missing: {_some(missing)}, "
            f"unexpected: {_some(there - expected) or 'none'}",
            hint=ANOTHER_STEP,
        )


def _some(names: set[str]) -> str:
    """A few names for a message."""
    shown = [name[:200] for name in sorted(names)[:10]]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")


@contextlib.contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn any exception from decoding into an error that says what is malformed."""
    try:
        yield
    except (MalformedError, NotKnownError) as error:
        raise _not_ours(what, error.received) from error
    except (ResilientError, MemoryError, OSError):
        raise
    except Exception as error:  # of any class, depending on the bytes
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise _not_ours(what, f"{kind}{error}") from error


def _not_ours(what: str, why: str | None) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{what} does not match the checkpoint format of this version.",
        received=None if why is None else why[:1000],
        hint=ANOTHER_STEP,
    )
