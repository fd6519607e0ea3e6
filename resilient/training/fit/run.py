"""Runs one attempt, from choosing the checkpoint to the History.

It holds the part of ``fit`` that needs Keras; ``api`` stays importable without it.
"""

import time
from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError
from resilient.saving.record import Loaded, is_of, of_kind
from resilient.saving.run_json import FitRun, ImportRun
from resilient.state import variables, weights
from resilient.training import rollback
from resilient.training.fit.attempt import FitAttempt, FitPlan
from resilient.training.fit.hook import Hook
from resilient.training.options import Rollback
from resilient.training.session import load
from resilient.training.under_way import note_finished


def run(
    plan: FitPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    """Run Keras's ``fit``, followed by a ``FitAttempt``; once more after a rollback."""
    session = plan.session
    _choose(plan)
    while True:
        hook = Hook(plan)
        try:
            history, attempt = _fit(hook, args, kwargs)
            break
        except rollback.Diverged as end:
            bad, before = end.bad, hook.attempt
        assert before is not None  # it raised that
        session.saving.wait()
        if session.group.index:
            raise rollback.end_that_was_told(session.group.broadcast("bad end"))
        with rollback.end_told(session.group):
            _go_back(plan, before, bad)
    session.saving.wait()
    if keras_internals.BACKEND == "torch" and attempt.progress.step:
        plan.model.eval()  # as at each epoch's end: this process may have had none
    if session.recorder is not None:
        session.recorder.end(attempt.progress, variables.leaves(plan.model))
    session.ended(attempt.progress)
    if plan.explicit:
        note_finished(plan.options.store.directory)
    return history


def _choose(plan: FitPlan) -> None:
    """Find where the fit begins, and set what an import or another run lends."""
    began, model = time.monotonic(), plan.model
    found = plan.session.choose()
    if found is None:
        plan.started = plan.session.start_from(plan.options.starts, {"": model})
    elif is_of(saved := found[1], ImportRun):
        plan.imported = found[0]
        # What an import does not have starts from scratch.
        saved = saved.taken_by(weights.ready(model))
        weights.put(model, saved.run.variables, saved.tensors, found[0].path)
        saved.run.warn()
    else:
        plan.found = of_kind(found, FitRun)
    plan.seconds = time.monotonic() - began


def _fit(
    hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[keras.callbacks.History, FitAttempt]:
    plan = hook.plan
    model, imported = plan.model, plan.imported
    with plan.session.parallel.training(model), hook:
        # If it stayed set, it would make a later, unrelated fit skip epochs.
        hook.callback(setattr, model, "_initial_epoch", model._initial_epoch)
        if imported is not None and imported.progress.epoch:
            model._initial_epoch = imported.progress.epoch
        try:
            history = plan.fit(*args, **kwargs)
        except Exception:
            plan.session.watch.disarm()
            raise
    if hook.attempt is None:
        raise NotSupportedError(
            "This model's fit never reached Keras's own training loop, so nothing "
            "was saved.",
            received=f"{type(model).__name__}.fit",
            hint="Call super().fit in it.",
        )
    return history, hook.attempt


def _go_back(plan: FitPlan, attempt: FitAttempt, bad: rollback.Bad) -> None:
    """Find where training continues after a bad batch.

    Raises:
        DivergedError: Training should stop, or cannot be rolled back (again).
        RolledBack: The run continues in another process.
    """
    began, how, session = time.monotonic(), plan.options.on_nan, plan.session
    store = plan.options.store
    obstacle = rollback.obstacle(store, how, bad) if isinstance(how, Rollback) else ""
    event = {"value": bad.value, "why": bad.why, "step": bad.step}
    action = "stop" if how == "stop" or obstacle else "rollback"
    session.events.emit("diverged", **attempt.progress._asdict() | event, action=action)
    if not isinstance(how, Rollback) or obstacle:
        raise rollback.diverged(bad, obstacle)
    line = f"At batch {bad.step:,} {bad.why}: rolling back."
    session.say(line, within_epoch=True)
    skip = rollback.turn_back(store, how, bad)
    found = load(plan.options, None, session.part.replicas)
    seconds = time.monotonic() - began
    session.events.emit(
        "rolled back to",
        **found[0].progress._asdict(),
        from_step=bad.step,
        skipped=[skip.start, skip.stop],
        seconds=seconds,
    )
    attempt.state.undo_attributes()
    checkpoint, saved = found
    # It cannot go back in this process to an import, to a start at which some variables
    # did not exist yet, nor to one after which steps were traced with settings that a
    # callback changed.
    if (
        session.group.count > 1
        or not attempt.iterator.inputs.only_arrays
        or not is_of(saved, FitRun)
        or len(attempt.state.leaves()) != len(saved.run.variables)
        or (not checkpoint.step and attempt.state.setup.differences(saved.run.setup))
    ):
        raise rollback.rolled_back(checkpoint.progress)
    plan.found, plan.since = (checkpoint, saved), attempt.state
    plan.seconds, plan.imported, plan.started = seconds, None, []


def restore_model(model: keras.Model, found: Loaded) -> None:
    """Set weights and optimizer, all or nothing; leave metrics and callbacks alone."""
    checkpoint, saved = found
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # inside fit the variables are empty
    extra = not is_of(saved, ImportRun)
    saved = saved.taken_by(weights.ready(model, (*weights.GROUPS, "extra")))
    weights.put(model, saved.run.variables, saved.tensors, checkpoint.path, extra=extra)
