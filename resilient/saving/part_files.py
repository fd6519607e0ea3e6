"""Reads and checks the files of one process's part of a checkpoint.

A checkpoint is data, whoever wrote it, and a malformed file counts as damage. Only
files that the manifest lists are opened.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from resilient import backends
from resilient.backends.base import Part
from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    NotSupportedError,
    ResilientError,
)
from resilient.saving.run_json import RunJson, decoded
from resilient.saving.snapshot import UNCHANGED, VARIABLES, paths
from resilient.serialization import Encoded
from resilient.serialization.classes import NotKnownError
from resilient.serialization.decoding import check, outline
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


def saver_of(checkpoint: Checkpoint) -> str:
    """The backend that saved a checkpoint.

    Raises:
        NotSupportedError: The manifest does not say.
    """
    for name in backends.BACKENDS:
        if name in checkpoint.environment:
            return name
    raise NotSupportedError(
        "The checkpoint does not say which backend saved it.",
        received=f"{checkpoint.path}: {dict(checkpoint.environment)}",
        hint="Use a checkpoint that fit, Run or Checkpoints saved.",
    )


def read_part(
    part: Part, checkpoint: Checkpoint, saver: str, *, lazy: bool = False
) -> tuple[RunJson, Encoded, dict[str, Any]]:
    """Read a process's run, its position in the data, and its tensors.

    Args:
        part: The process's part.
        checkpoint: The checkpoint.
        saver: The backend that saved it.
        lazy: Whether large tensors may stay on the disk: ``numpy.asarray`` reads one.

    Raises:
        BackendNotAvailableError: A library that reads its format is missing.
        CorruptCheckpointError: A file is missing, violates its schema, or does not
            match the others.
    """
    of_run, of_data = paths(part)
    with malformed(str(checkpoint.path / of_run)):
        run = decoded(parse(checkpoint.content(of_run)))
    with malformed(str(checkpoint.path / of_data)):
        position = parse(checkpoint.content(of_data))
    tensors = _tensors(part, checkpoint, saver, lazy=lazy)
    _require_complete(run, set(tensors), checkpoint)
    arrays = {name: tensors[name] for name in run.arrays}
    with malformed(str(checkpoint.path / of_run)):
        check(vars(run), arrays)
    with malformed(str(checkpoint.path / of_data)):
        from_json(Positions, outline(position, arrays))
    return run, position, tensors


def _tensors(
    part: Part, checkpoint: Checkpoint, saver: str, *, lazy: bool
) -> dict[str, Any]:
    """The tensors that changed, and those that did not."""
    variables = checkpoint.path / VARIABLES
    found = backends.read(saver, str(variables), part, lazy=lazy)
    inside = f"{VARIABLES}/{UNCHANGED}/"
    if not any(name.startswith(inside) for name in checkpoint.files):
        return found
    others = backends.read(saver, str(variables / UNCHANGED), part, lazy=lazy)
    if twice := found.keys() & others.keys():
        raise CorruptCheckpointError(
            f"{checkpoint.path} holds tensors twice.",
            received=_some(twice),
            hint=ANOTHER_STEP,
        )
    return found | others


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
