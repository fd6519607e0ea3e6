"""A run that begins from an import: what its first checkpoint lacks begins anew.

It holds the weights, the optimizer where its source had one, and seeds where that had
them; ``run.json`` says what could not be known. The next fit begins at its epoch with
these variables, and with data, random state and callbacks as a new run has them.

Importing this module loads neither Keras nor a backend.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilient.errors import warn_not_exact
from resilient.saving.record import SavedState
from resilient.saving.run_json import ImportRun
from resilient.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    import keras


def put(
    model: "keras.Model", checkpoint: Checkpoint, saved: SavedState[ImportRun]
) -> None:
    """Set what an imported checkpoint has, all of it or nothing.

    Raises:
        CheckpointMismatchError: It is of another model; nothing was changed.
    """
    from resilient.state import weights

    weights.put(model, saved.run.variables, saved.tensors, checkpoint.path)


def begin(
    model: "keras.Model", checkpoint: Checkpoint, saved: SavedState[ImportRun]
) -> None:
    """The same, and say what begins anew."""
    put(model, checkpoint, saved)
    warn(saved.run.source, saved.run.unknown)


def warn(source: str, unknown: Sequence[str]) -> None:
    """Say what an import could not know."""
    warn_not_exact(f"{source} does not tell these, which begin anew", unknown)
