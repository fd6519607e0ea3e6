"""One attempt, from the checkpoint that was chosen to the History.

The part of ``fit`` that needs Keras; ``api`` stays importable without it.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

import keras

from resilient.backends import get_backend
from resilient.distributed.strategies import supported
from resilient.errors import (
    CheckpointMismatchError,
    NotSupportedError,
    RolledBack,
)
from resilient.saving import imported, record
from resilient.saving.record import Loaded
from resilient.saving.run_json import FitRun, ImportRun, RunJson
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import replicas, variables
from resilient.storage.checkpoint import Checkpoint
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import Bad, Diverged, LossWatch, Rollback
from resilient.training.fit.attempt import FitAttempt
from resilient.training.fit.hook import hooked
from resilient.training.fit.resumption import Resumption
from resilient.training.fit.run_state import FitState
from resilient.training.session import Session, load


@dataclass(frozen=True)
class FitPlan:
    """A fit that is about to run.

    Attributes:
        session: Who takes part, and what was asked for.
        stateful: The user's own objects.
        on_nan: What to do when the loss is bad.
        loss_spike: See ``divergence.LossWatch``.
    """

    session: Session
    stateful: StatefulObjects
    on_nan: Literal["ignore", "stop"] | Rollback
    loss_spike: float | None


def run(
    plan: FitPlan, model: keras.Model, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    """Let Keras's ``fit`` run, followed by a ``FitAttempt``; again after a rollback."""
    supported.require_supported(replicas.strategy_of(model))
    began, session = time.monotonic(), plan.session
    found = session.choose()
    reading = time.monotonic() - began
    if found is not None:
        _require_of_fit(*found)
    attempt = _attempt(plan, model, found, reading)
    del found  # the attempt lets go of it once it is restored
    while True:
        try:
            history = _fit(plan, attempt, args, kwargs)
            break
        except Diverged as end:
            bad = end.bad
        attempt = _after(plan, attempt, bad)
    session.ended(attempt.progress)
    return history


def _require_of_fit(checkpoint: Checkpoint, saved: record.SavedState[RunJson]) -> None:
    if not (record.is_of(saved, FitRun) or record.is_of(saved, ImportRun)):
        raise CheckpointMismatchError(
            "fit cannot go on from a checkpoint of a training loop.",
            received=f"{checkpoint.path}, saved by resilient.Run or Checkpoints",
            hint="Use another checkpoint_dir: each run needs its own.",
        )


def _attempt(
    plan: FitPlan,
    model: keras.Model,
    found: Loaded | None,
    reading: float,
    since: FitState | None = None,
) -> FitAttempt:
    """Follow one ``fit``, from a checkpoint that took ``reading`` seconds to read."""
    anew = plan.session.options.resume == "never" and since is None
    resumption = checkpoint = None
    if found is not None and record.is_of(found[1], ImportRun):
        imported.begin(model, found[0], found[1])
        checkpoint = found[0]
    elif found is not None and record.is_of(found[1], FitRun):
        resumption = Resumption(found[0], found[1])
    return FitAttempt(
        model,
        plan.session,
        resumption=resumption,
        imported=checkpoint,
        stateful=plan.stateful,
        losses=LossWatch(
            plan.loss_spike, active=plan.on_nan != "ignore", group=plan.session.group
        ),
        skips=[] if anew else rollback.read(plan.session.options.store.directory),
        since=since,
        seconds=reading,
    )


def _fit(
    plan: FitPlan, attempt: FitAttempt, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> keras.callbacks.History:
    model = attempt.model
    initial_epoch = model._initial_epoch
    if attempt.progress.epoch:  # begun from an import
        model._initial_epoch = attempt.progress.epoch
    try:
        training = plan.session.parallel.training(model)
        with attempt.saving, training, hooked(attempt):
            try:
                history: keras.callbacks.History = model.fit(*args, **kwargs)
            except Exception:
                plan.session.watch.disarm()
                raise
    finally:
        # Left set, it would make a later, unrelated fit skip epochs.
        model._initial_epoch = initial_epoch
        if attempt.iterator is not None:
            attempt.iterator.let_go()
    if attempt.iterator is None:
        raise NotSupportedError(
            "This model's fit never reached Keras's own training loop, so nothing "
            "of it was saved.",
            received=f"{type(model).__name__}.fit",
            hint="Let it call super().fit.",
        )
    return history


def _after(plan: FitPlan, attempt: FitAttempt, bad: Bad) -> FitAttempt:
    """The attempt that goes on after a bad batch.

    Raises:
        DivergedError: Training is to stop, or cannot be rolled back (any more).
        RolledBack: It goes on in another process.
    """
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
    session.events.emit("diverged", **attempt.progress.to_json() | told, action=action)
    if not isinstance(how, Rollback) or obstacle:
        raise rollback.diverged(bad, obstacle)
    session.say(f"At batch {bad.step:,} {bad.why}: rolling back.", within_epoch=True)
    skip = rollback.turn_back(store, how, bad)
    found = load(store, None, session.part.replicas)
    seconds = time.monotonic() - began
    session.events.emit(
        "rolled back to",
        **found[0].progress.to_json(),
        from_step=bad.step,
        skipped=[skip.start, skip.stop],
        seconds=seconds,
    )
    here = session.group.count == 1 and attempt.inputs.only_arrays
    if record.is_of(found[1], ImportRun) or not here:
        raise RolledBack(found[0].progress)
    attempt.state.undo_attributes()
    return _attempt(plan, attempt.model, found, seconds, attempt.state)


def restore_model(model: keras.Model, found: Loaded) -> None:
    """Set weights and optimizer, all or nothing; metrics and callbacks are left."""
    checkpoint, saved = found
    backend = get_backend()
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # inside of fit the variables are empty
    if record.is_of(saved, ImportRun):
        imported.put(model, checkpoint, saved)
        return
    optimizer = getattr(model, "optimizer", None)  # none before compile
    if model.built and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)

    def relevant(name: str) -> bool:
        return not name.startswith("metrics.")

    live = [leaf for leaf in variables.leaves(model) if relevant(leaf.name)]
    layout = [v for v in saved.run.variables if relevant(v["name"])]
    differences = variables.differences(layout, live)
    if differences:
        raise CheckpointMismatchError(
            f"{checkpoint.path} is of another model, or this one is not built yet. "
            "Nothing was changed.",
            received="\n  " + "\n  ".join(differences),
            hint="Use the same model, and build it (call it on a batch) first.",
        )
    variables.assign(backend, layout, live, saved.tensors)
