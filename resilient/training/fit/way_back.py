"""Makes a rollback to the start of a run possible, in its first batches.

The start is a checkpoint like any other, at step 0. It is saved only if all weights
exist by then: a restart would create the others anew.
"""

from typing import TYPE_CHECKING

from resilient.objects.restore import plan
from resilient.objects.tree import Scope, Tree
from resilient.saving.record import Loaded, is_of
from resilient.saving.run_json import FitRun
from resilient.state import variables
from resilient.state.build import build_early, is_built
from resilient.training.divergence.options import Rollback

if TYPE_CHECKING:
    from resilient.training.fit.attempt import FitAttempt


def save_start(attempt: "FitAttempt", on_nan: str | Rollback) -> None:
    """Save a new run before its first batch, if a rollback may need it.

    Args:
        attempt: Its callbacks have seen ``on_train_begin``.
        on_nan: What to do when the loss is bad.
    """
    if not isinstance(on_nan, Rollback) or attempt.progress.step:
        return
    model, inputs = attempt.model, attempt.inputs
    # Building calls the model's own code, which may count its calls.
    layers = model._flatten_layers() if is_built(model) else ()
    own = variables.ids(variables.leaves(model))
    named = {f"layer {i}": layer for i, layer in enumerate(layers)}
    counts = Tree({}, named, Scope(own=lambda: own))
    build_early(model, attempt.iterator, inputs.backend, inputs.drawn_ahead)
    plan(counts, {}, {})()
    if is_built(model):
        attempt.attempt.save_start(attempt.progress)


def leads_here(attempt: "FitAttempt", found: Loaded) -> bool:
    """Whether an attempt can go back to a checkpoint of its own in this process.

    It cannot go back to a start at which some variables did not exist yet, nor to one
    after which steps were traced with settings that a callback changed.

    Args:
        attempt: The attempt to undo.
        found: The checkpoint.
    """
    checkpoint, saved = found
    if not is_of(saved, FitRun):  # an import
        return False
    if len(variables.leaves(attempt.model)) != len(saved.run.variables):
        return False
    return checkpoint.step > 0 or not attempt.state.setup.differences(saved.run.setup)
