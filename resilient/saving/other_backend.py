"""Decides whether this process can continue from another backend's checkpoint.

It is refused unless ``allow={"backend"}`` asks for it, and if several processes or
replicas are involved.
"""

from resilient.backends import BACKENDS
from resilient.backends.base import Backend, Part
from resilient.errors import CheckpointMismatchError, NotSupportedError
from resilient.storage.checkpoint import Checkpoint


def saver(backend: Backend, checkpoint: Checkpoint, *, allowed: bool) -> str | None:
    """The backend that saved a checkpoint; None if it is this one.

    Args:
        backend: The backend that reads it.
        checkpoint: The checkpoint; only its manifest has been read.
        allowed: Whether it may be a different one.

    Raises:
        CheckpointMismatchError: It is different, and may not be.
    """
    found = checkpoint.environment.keys() & set(BACKENDS)
    if not found or backend.name in found:
        return None
    name = min(found)
    if allowed:
        return name
    raise CheckpointMismatchError(
        f"This run was trained on {name}, but this process uses {backend.name}.",
        received=str(checkpoint.path),
        hint=f"Set KERAS_BACKEND={name} to continue it exactly. Or pass "
        f'allow={{"backend"}} to continue it on {backend.name}, no longer exactly. Or '
        "take its weights there: run `resilient export DIR --to m.keras --model "
        "MODULE:FUNCTION`, and train that model in another checkpoint_dir.",
    )


def saver_of(checkpoint: Checkpoint) -> str:
    """The backend that saved a checkpoint.

    Raises:
        NotSupportedError: The manifest does not say.
    """
    for name in BACKENDS:
        if name in checkpoint.environment:
            return name
    raise NotSupportedError(
        "The checkpoint does not say which backend saved it.",
        received=f"{checkpoint.path}: {dict(checkpoint.environment)}",
        hint="Use a checkpoint that fit, Run or Checkpoints saved.",
    )


def require_alone(checkpoint: Checkpoint, saver: str, saved: int, part: Part) -> None:
    """Raise if several are involved.

    Args:
        checkpoint: The checkpoint.
        saver: The backend that saved it.
        saved: How many processes, or replicas, did.
        part: What would continue from it.

    Raises:
        NotSupportedError: Several are.
    """
    if max(saved, part.count, part.replicas) == 1:
        return
    raise NotSupportedError(
        "Only a run of one process and one replica can continue on another backend.",
        received=f"{checkpoint.path}: {saved} on {saver}, "
        f"{max(part.count, part.replicas)} now",
        hint=f"Set KERAS_BACKEND={saver} to continue it. Or continue it there in one "
        "process until the next checkpoint, and then here.",
    )
