"""Recognises a second training phase in the directory of the first.

Fine-tuning with other layers frozen, or on other data, is the most common cause of a
mismatch, and a bare list of differences does not tell its author so.
"""

from collections.abc import Sequence

import keras

from resilient.errors import CheckpointMismatchError
from resilient.saving.run_json import FitRun
from resilient.serialization import JSON
from resilient.state import comparison, layouts, variables
from resilient.state.build import is_built
from resilient.state.difference import Difference
from resilient.storage.checkpoint import Checkpoint


def require_same_phase(
    checkpoint: Checkpoint,
    run: FitRun,
    model: keras.Model,
    live: JSON,
    found: Sequence[Difference],
) -> None:
    """Raise if the same model is being trained differently, or on different data.

    Args:
        checkpoint: The checkpoint that was found.
        run: Its contents.
        model: The model; until it is built, its frozen layers are unknown.
        live: The fingerprint of this run.
        found: Other differences that are not allowed.

    Raises:
        CheckpointMismatchError: It looks like a second phase.
    """
    if any(each.of not in ("data", "batch_size") for each in found):
        return
    phase = _refrozen(run, model, live) if is_built(model) else []
    if found and (phase or checkpoint.finished):
        phase.append("the data is different")
    if not phase:
        return
    finished = ", which has finished" if checkpoint.finished else ""
    raise CheckpointMismatchError(
        f"This looks like a second training phase: {', and '.join(phase)}.",
        received=f"{checkpoint.path} of the first phase{finished}. Nothing was "
        "changed.",
        hint="Give each phase its own checkpoint_dir, or use "
        'resilient.enabled(...), which does that. resume="never" starts over '
        "in this one.",
    )


def _refrozen(run: FitRun, model: keras.Model, live: JSON) -> list[str]:
    """The layers that are frozen in only one of the two, in words."""
    found, groups = comparison.refrozen(run.fingerprint, live), variables.GROUPS[:2]
    if found and layouts.differences(
        run.variables, variables.leaves(model), groups=groups
    ):
        return found
    return []
