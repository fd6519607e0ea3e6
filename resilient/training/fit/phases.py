"""Recognises a second phase of training in the directory of the first.

Fine-tuning with other layers frozen, or on other data, is the most frequent reason for
a checkpoint that does not fit; and the differences say nothing to who did that.
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
    """Raise where the same model is trained in another way, or on other data.

    Args:
        checkpoint: What there is.
        run: What is in it.
        model: The model; until it is built, nobody knows what is frozen.
        live: The fingerprint of this run.
        found: What else differs, and is not allowed.

    Raises:
        CheckpointMismatchError: It looks like another phase.
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
        hint="Give each phase a checkpoint_dir of its own, or use "
        "resilient.enabled(...), which does that. "
        'resume="never" starts over in this one.',
    )


def _refrozen(run: FitRun, model: keras.Model, live: JSON) -> list[str]:
    """Which layers are frozen in one of the two only, in words."""
    layout, groups = variables.leaves(model), variables.GROUPS[:2]
    if layouts.differences(run.variables, layout, groups=groups):
        return comparison.refrozen(run.fingerprint, live)
    return []
