"""Runs one attempt, from choosing the checkpoint to the History.

It holds the part of ``fit`` that needs Keras; ``api`` stays importable without it.
"""

import time
from functools import partial
from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError
from resilient.saving.record import Loaded, is_of
from resilient.saving.run_json import ImportRun
from resilient.state import variables, weights
from resilient.training import script_end
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import Bad, Diverged
from resilient.training.divergence.options import Rollback
from resilient.training.fit import finished
from resilient.training.fit.attempt import FitAttempt
from resilient.training.fit.draw_only import drawing_only
from resilient.training.fit.hook import hooked
from resilient.training.fit.plan import FitPlan
from resilient.training.fit.way_back import leads_here
from resilient.training.session import load


def run(
    plan: FitPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    """Run Keras's ``fit``, followed by a ``FitAttempt``; once more after a rollback."""
    began, session = time.monotonic(), plan.session
    script_end.watch(session, partial(variables.leaves, plan.model))
    found = session.choose()
    attempt = FitAttempt(plan, found, time.monotonic() - began)
    del found  # the attempt frees it once it is restored
    while True:
        try:
            history = _fit(plan, attempt, args, kwargs)
            break
        except Diverged as end:
            bad = end.bad
        attempt = _after(plan, attempt, bad)
    session.saving.wait()
    if keras_internals.BACKEND == "torch" and attempt.progress.step:
        plan.model.eval()  # as at each epoch's end: this process may have had none
    session.ended(attempt.progress)
    if plan.explicit:
        finished.note(session.options.store.directory)
    return history


def _fit(
    plan: FitPlan, attempt: FitAttempt, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    model = plan.model
    initial_epoch = model._initial_epoch
    if attempt.progress.epoch:  # begun from an import
        model._initial_epoch = attempt.progress.epoch
    try:
        training = plan.session.parallel.training(model)
        with training, hooked(attempt), drawing_only(attempt):
            try:
                history = plan.fit(*args, **kwargs)
            except Exception:
                plan.session.watch.disarm()
                raise
    finally:
        # If left set, it would make a later, unrelated fit skip epochs.
        model._initial_epoch = initial_epoch
        if attempt.iterator is not None:
            attempt.iterator.let_go()
    if attempt.iterator is None:
        raise NotSupportedError(
            "This model's fit never reached Keras's own training loop, so nothing "
            "was saved.",
            received=f"{type(model).__name__}.fit",
            hint="Call super().fit in it.",
        )
    return history


def _after(plan: FitPlan, attempt: FitAttempt, bad: Bad) -> FitAttempt:
    """The attempt that continues after a bad batch.

    Raises:
        DivergedError: Training should stop, or cannot be rolled back (again).
        RolledBack: The run continues in another process.
    """
    plan.session.saving.wait()
    if plan.session.group.index:
        raise rollback.end_that_was_told(plan.session.group.broadcast("bad end"))
    with rollback.end_told(plan.session.group):
        return _go_back(plan, attempt, bad)


def _go_back(plan: FitPlan, attempt: FitAttempt, bad: Bad) -> FitAttempt:
    began, how, session = time.monotonic(), plan.on_nan, plan.session
    store = session.options.store
    obstacle = ""
    if isinstance(how, Rollback):
        obstacle = rollback.obstacle(store, how, bad)
    told = {"value": bad.value, "why": bad.why, "step": bad.step}
    action = "stop" if how == "stop" or obstacle else "rollback"
    session.events.emit("diverged", **attempt.progress._asdict() | told, action=action)
    if not isinstance(how, Rollback) or obstacle:
        raise rollback.diverged(bad, obstacle)
    session.say(f"At batch {bad.step:,} {bad.why}: rolling back.", within_epoch=True)
    skip = rollback.turn_back(store, how, bad)
    found = load(session.options, None, session.part.replicas)
    seconds = time.monotonic() - began
    session.events.emit(
        "rolled back to",
        **found[0].progress._asdict(),
        from_step=bad.step,
        skipped=[skip.start, skip.stop],
        seconds=seconds,
    )
    attempt.state.undo_attributes()
    here = session.group.count == 1 and attempt.inputs.only_arrays
    if not (here and leads_here(attempt, found)):
        raise rollback.rolled_back(found[0].progress)
    return FitAttempt(plan, found, seconds, attempt.state)


def restore_model(model: keras.Model, found: Loaded) -> None:
    """Set weights and optimizer, all or nothing; leave metrics and callbacks alone."""
    checkpoint, saved = found
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # inside fit the variables are empty
    extra = not is_of(saved, ImportRun)
    saved = saved.taken_by(weights.ready(model, (*weights.GROUPS, "extra")))
    weights.put(model, saved.run.variables, saved.tensors, checkpoint.path, extra=extra)
