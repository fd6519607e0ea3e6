"""Runs one attempt, from choosing the checkpoint to the History.

It holds the part of ``fit`` that needs Keras; ``api`` stays importable without it.
"""

import contextlib
import time
from functools import partial
from typing import Any

import keras

from resilient import keras_internals
from resilient.convert.start import start
from resilient.errors import NotSupportedError
from resilient.progress import Progress
from resilient.saving.record import Loaded, is_of, of_kind
from resilient.saving.run_json import FitRun, ImportRun
from resilient.state import variables, weights
from resilient.training import announce
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import Bad, Diverged
from resilient.training.fit.attempt import FitAttempt, FitPlan, Origin
from resilient.training.fit.hook import Hook
from resilient.training.options import Rollback
from resilient.training.session import load
from resilient.training.under_way import note_finished


def run(
    plan: FitPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    """Run Keras's ``fit``, followed by a ``FitAttempt``; once more after a rollback."""
    session, directory = plan.session, plan.session.options.store.directory
    if session.recorder is not None:
        leaves = partial(variables.leaves, plan.model)
        session.recorder.at_exit(directory, session.backend, leaves)
    hook = Hook(plan, _origin(plan))
    while True:
        try:
            history, attempt = _fit(plan, hook, args, kwargs)
            break
        except Diverged as end:
            bad, before = end.bad, hook.attempt
        assert before is not None  # it raised that
        hook = Hook(plan, _after(plan, before, bad))
    session.saving.wait()
    if keras_internals.BACKEND == "torch" and attempt.progress.step:
        plan.model.eval()  # as at each epoch's end: this process may have had none
    session.ended(attempt.progress)
    if plan.explicit:
        note_finished(directory)
    return history


def _origin(plan: FitPlan) -> Origin:
    """Where the fit begins: what an import or another run lends is set by now."""
    began, session, model = time.monotonic(), plan.session, plan.model
    found = session.choose()
    if found is None:
        asked = plan.start_from
        wanted = [] if asked is None else [(asked, model, "")]
        started = next(iter(start(wanted, session.group)), None)
        return Origin(time.monotonic() - began, started=started)
    return _origin_in(plan, found, time.monotonic() - began)


def _origin_in(plan: FitPlan, found: Loaded, seconds: float) -> Origin:
    """A checkpoint as the origin of a fit."""
    checkpoint, saved = found
    if not is_of(saved, ImportRun):
        return Origin(seconds, of_kind(found, FitRun))
    # What an import does not have starts from scratch.
    saved = saved.taken_by(weights.ready(plan.model))
    weights.put(plan.model, saved.run.variables, saved.tensors, checkpoint.path)
    saved.run.warn()
    return Origin(seconds, imported=checkpoint)


def _fit(
    plan: FitPlan, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[keras.callbacks.History, FitAttempt]:
    model, trial = plan.model, plan.session.options.trial
    initial_epoch = model._initial_epoch
    if hook.origin.progress.epoch:  # of an import
        model._initial_epoch = hook.origin.progress.epoch
    try:
        with contextlib.ExitStack() as entered:
            entered.enter_context(plan.session.parallel.training(model))
            entered.enter_context(hook)
            if trial is not None:
                entered.enter_context(trial.stepping(model, partial(_draw, hook)))
            try:
                history = plan.fit(*args, **kwargs)
            except Exception:
                plan.session.watch.disarm()
                raise
    finally:
        # If it stayed set, it would make a later, unrelated fit skip epochs.
        model._initial_epoch = initial_epoch
    if hook.attempt is None:
        raise NotSupportedError(
            "This model's fit never reached Keras's own training loop, so nothing "
            "was saved.",
            received=f"{type(model).__name__}.fit",
            hint="Call super().fit in it.",
        )
    return history, hook.attempt


def _draw(hook: Hook, batches: Any) -> None:
    """Draw the batches of a step, and record their digests."""
    assert hook.attempt is not None
    step, epoch, batch = hook.attempt.progress
    recorder = hook.plan.session.recorder
    assert recorder is not None
    draws = keras_internals.generation.draws_in_step(
        hook.plan.model.steps_per_execution
    )
    for number in range(1, draws + 1):
        try:
            drawn = next(batches)
        except StopIteration:
            if number == 1:
                raise
            break
        recorder.add_batch(Progress(step + number, epoch, batch + number), drawn)


def _after(plan: FitPlan, attempt: FitAttempt, bad: Bad) -> Origin:
    """Where training continues after a bad batch.

    Raises:
        DivergedError: Training should stop, or cannot be rolled back (again).
        RolledBack: The run continues in another process.
    """
    plan.session.saving.wait()
    if plan.session.group.index:
        raise rollback.end_that_was_told(plan.session.group.broadcast("bad end"))
    with rollback.end_told(plan.session.group):
        return _go_back(plan, attempt, bad)


def _go_back(plan: FitPlan, attempt: FitAttempt, bad: Bad) -> Origin:
    began, how, session = time.monotonic(), plan.on_nan, plan.session
    store = session.options.store
    obstacle = ""
    if isinstance(how, Rollback):
        obstacle = rollback.obstacle(store, how, bad)
    event = {"value": bad.value, "why": bad.why, "step": bad.step}
    action = "stop" if how == "stop" or obstacle else "rollback"
    session.events.emit("diverged", **attempt.progress._asdict() | event, action=action)
    if not isinstance(how, Rollback) or obstacle:
        raise rollback.diverged(bad, obstacle)
    session.say(announce.rolling_back(bad.step, bad.why), within_epoch=True)
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
    if not (here and _leads_here(attempt, found)):
        raise rollback.rolled_back(found[0].progress)
    return Origin(seconds, of_kind(found, FitRun), since=attempt.state)


def _leads_here(attempt: FitAttempt, found: Loaded) -> bool:
    """Whether an attempt can go back to a checkpoint of its own in this process.

    It cannot go back to a start at which some variables did not exist yet, nor to one
    after which steps were traced with settings that a callback changed.
    """
    checkpoint, saved = found
    if not is_of(saved, FitRun):  # an import
        return False
    if len(variables.leaves(attempt.model)) != len(saved.run.variables):
        return False
    return checkpoint.step > 0 or not attempt.state.setup.differences(saved.run.setup)


def restore_model(model: keras.Model, found: Loaded) -> None:
    """Set weights and optimizer, all or nothing; leave metrics and callbacks alone."""
    checkpoint, saved = found
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # inside fit the variables are empty
    extra = not is_of(saved, ImportRun)
    saved = saved.taken_by(weights.ready(model, (*weights.GROUPS, "extra")))
    weights.put(model, saved.run.variables, saved.tensors, checkpoint.path, extra=extra)
