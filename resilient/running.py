"""One attempt, from the checkpoint that was chosen to the History.

The part of ``fit`` that needs Keras; ``fit.py`` stays importable without it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from resilient import fingerprint, keras_internals, record, state
from resilient.arguments import DataMode
from resilient.attempt import Attempt
from resilient.backends import get_backend
from resilient.checkpoints.checkpoint import Checkpoint, Reader
from resilient.errors import CheckpointMismatchError, NotSupportedError, describe
from resilient.events import Events
from resilient.hook import hooked
from resilient.saving import Saving
from resilient.stateful import StatefulObjects

logger = logging.getLogger(__name__)

# A verified checkpoint and what is in it.
Loaded = tuple[Checkpoint, record.Record]


def run_attempt(
    model: keras.Model,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    found: Loaded | None,
    stateful: StatefulObjects,
    data: DataMode,
    events: Events,
    attempts: Sequence[Mapping[str, Any]],
    settle: Callable[[], None],
    make_saving: Callable[[Mapping[str, str]], Saving],
) -> keras.callbacks.History:
    """Let Keras's ``fit`` run, followed by an ``Attempt``.

    ``found`` is what to resume from, if there is something. ``settle`` is called when
    nothing stands in the way of training any more.
    """
    backend = get_backend()
    saving = make_saving(fingerprint.environment(backend))

    def on_begin(resumed: Checkpoint | None, over: bool, verbose: Any) -> None:
        settle()
        if resumed is None:
            return
        saving.start(resumed.progress)
        events.emit("restored", **resumed.progress.to_json())
        line = f"Resumed at {resumed.progress} from {resumed.path}"
        if over:
            line = f"Nothing left to train at step {resumed.step:,} of {resumed.path}"
        logger.info(line)
        if verbose not in (0, "0"):
            print(line)  # noqa: T201  # beside Keras's own progress bar

    attempt = Attempt(
        model,
        backend=backend,
        found=found,
        saving=saving,
        stateful=stateful,
        data=data,
        attempts=attempts,
        on_begin=on_begin,
    )
    del found  # the attempt lets go of it once it is restored
    initial_epoch = model._initial_epoch
    try:
        with saving, hooked(attempt):
            history: keras.callbacks.History = model.fit(*args, **kwargs)
    finally:
        # Left set, it would make a later, unrelated fit skip epochs.
        model._initial_epoch = initial_epoch
    if attempt.iterator is None:
        raise NotSupportedError(
            describe(
                "This model's fit never reached Keras's own training loop, so nothing "
                "of it was saved.",
                f"{type(model).__name__}.fit",
                "Let it call super().fit.",
            )
        )
    events.emit("ended", **attempt.progress.to_json())
    return history


def record_reader() -> Reader[record.Record]:
    """Reads a checkpoint with the backend that Keras runs on."""
    return record.reader(get_backend())


def restore_model(model: keras.Model, found: Loaded) -> None:
    """Set weights and optimizer, all or nothing; metrics and callbacks are left."""
    checkpoint, saved = found
    backend = get_backend()
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # inside of fit the variables are empty
    optimizer = getattr(model, "optimizer", None)  # none before compile
    if model.built and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)

    def relevant(name: str) -> bool:
        return not name.startswith("metrics.")

    live = [leaf for leaf in state.leaves(model) if relevant(leaf.name)]
    layout = [v for v in saved.run["variables"] if relevant(v["name"])]
    differences = state.differences(layout, live)
    if differences:
        raise CheckpointMismatchError(
            describe(
                f"{checkpoint.path} is of another model, or this one is not built yet. "
                "Nothing was changed.",
                "\n  " + "\n  ".join(differences),
                "Use the same model, and build it (call it on a batch) first.",
            )
        )
    for old, leaf in zip(layout, live, strict=True):
        backend.assign(leaf.target, saved.tensors[old["name"]])


def require_model(model: Any) -> None:
    """Raise TypeError for what is no Keras model."""
    if not isinstance(model, keras_internals.Trainer):
        raise TypeError(
            describe(
                "resilient.fit trains a keras.Model.",
                f"{type(model).__module__}.{type(model).__qualname__}",
                f"Pass a model of Keras (the {keras_internals.BACKEND} backend is on).",
            )
        )
