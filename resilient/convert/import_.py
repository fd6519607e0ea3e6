"""Starts a run from another run, or from what Keras or safetensors wrote.

Every weight of the model is set from the source, and every tensor of the source is
used; the same goes for the optimizer, if the source has its state. What is not taken
(the position of the data, random state, callbacks) starts over, and a warning says so.

Importing this module loads neither Keras nor a backend.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.convert.tensors import Tensors, differences, layouts, mismatch
from resilient.errors import ResilientError, message, printable
from resilient.progress import Progress
from resilient.saving.run_json import ImportRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Unchanged, commit
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.stores import store_of, wait_for_uploads
from resilient.telemetry.events import Events
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

    from resilient.convert.sources import Source

_ALWAYS = (
    "the position in the data",
    "callbacks, History and metrics",
    "the random state",
)


@ending_at_user_line
def import_checkpoint(
    source: str | os.PathLike[str],
    model: "keras.Model",
    *,
    checkpoint_dir: str | os.PathLike[str],
    epoch: int | None = None,
) -> Checkpoint:
    """Convert a run, or a file of Keras or safetensors, into what ``fit`` resumes from.

    That ``fit`` starts at the beginning of an epoch with the source's weights, and with
    its optimizer state if there is one. A ``NotExactWarning`` names what is not taken.

    Args:
        source: The directory of a run or one of its checkpoints, a directory of
            ``BackupAndRestore``, or a file ``.keras``, ``.weights.h5`` or
            ``.safetensors``.
        model: The built and compiled model. It is not changed.
        checkpoint_dir: The run's directory, as in ``fit``. It must not contain a
            checkpoint.
        epoch: How many epochs were trained, and so the number of the next one, counted
            from 0. Needed only for files, and for what was saved in the middle of an
            epoch, from where an import cannot continue. The number of batches trained
            is what the run says, or the optimizer's count.

    Returns:
        The checkpoint.

    Raises:
        CheckpointMismatchError: The source lacks variables of the model, has additional
            ones, or has different shapes or dtypes; all are listed. Nothing was
            changed.
        BackendNotAvailableError: A library that reads the source is missing.
        CorruptCheckpointError: No checkpoint of the source is intact.
        DirectoryInUseError: A run is using ``checkpoint_dir``.
        NotSupportedError: The source's format cannot be imported.
        ResilientError: ``checkpoint_dir`` already has checkpoints.
        ValueError: ``epoch`` is missing or impossible.
    """
    from resilient.backends import get_backend
    from resilient.convert.sources import find
    from resilient.keras_internals import require_model
    from resilient.state import fingerprint

    require_model(model)
    store, found = store_of(checkpoint_dir), find(Path(source).absolute())
    values = _values(found, model)
    progress = _progress(found, model, values, epoch)
    run, backend = _run(found, model, values), get_backend()
    with store.opened():
        if store.steps() or (store.directory / layout.ROLLBACKS).exists():
            raise ResilientError(
                "This directory already has a run, and an import starts a new one.",
                received=store,
                hint="Use another checkpoint_dir.",
            )
        snapshot = Snapshot(run, NOWHERE, backend.snapshot(values), progress)
        made = commit(store, snapshot, fingerprint.environment(backend), Unchanged())
        saved = {**progress._asdict(), "nbytes": made.nbytes}
        Events(store.directory).emit("saved", **saved)
        run.warn()
        wait_for_uploads(store)
    return made


def _values(source: "Source", model: "keras.Model") -> Tensors:
    """The values of the model's variables, by their names in a checkpoint.

    Seeds only if the source has them, the optimizer if the source has any of it, and no
    metrics: those start over with every epoch.

    Raises:
        CheckpointMismatchError: The source is not of this model.
    """
    from resilient.convert.keras_files import by_path
    from resilient.state.weights import GROUPS, group, needed, ready

    live = ready(model)
    ours = {n: x for n, x in by_path(model).items() if group(x.name) != "extra"}
    taken = {n: x for n, x in ours.items() if group(x.name) in GROUPS}
    theirs = source.tensors(model, taken)
    groups = {group(ours[name].name) for name in theirs if name in ours}
    must = needed(model, live)
    if "optimizer" not in groups:
        must = {n: x for n, x in must.items() if group(n) != "optimizer"}
    wanted = {n: x for n, x in ours.items() if n in theirs or x.name in must}
    if found := differences(layouts(theirs), layouts(wanted)):
        raise mismatch(source.path, found.values())
    return {taken[name].name: each for name, each in theirs.items() if name in taken}


def _progress(
    source: "Source", model: "keras.Model", values: Tensors, epoch: int | None
) -> Progress:
    """Where the run begins."""
    from resilient.state import variables

    if epoch is None and not source.batch:
        epoch = source.epoch
    counter = getattr(model.optimizer, "iterations", None)
    names = [x.name for x in variables.leaves(model) if x.target is counter]
    counted = sum(int(values[name]) for name in names if name in values)
    step = counted if source.step is None else source.step
    if epoch is None or not 0 <= epoch <= step:
        raise ValueError(
            message(
                "An import takes no position in the data, so the run has to begin with "
                "an epoch, after the steps of those before it.",
                received=f"epoch={epoch}, {source.path}: epoch {source.epoch}, batch "
                f"{source.batch}, {step} steps",
                hint="Pass epoch (on the command line: --epoch), the number of epochs "
                "that are done; 0 if there is no optimizer. If the source was saved in "
                "the middle of an epoch, its number trains that epoch from its "
                "beginning (some batches twice, as Keras would), and the next number "
                "skips the rest of it.",
            )
        )
    return Progress(step, epoch, 0)


def _run(source: "Source", model: "keras.Model", values: Tensors) -> ImportRun:
    """What there is besides the values."""
    from resilient.state import variables
    from resilient.state.weights import group

    leaves = variables.leaves(model)
    others = [leaf for leaf in leaves if leaf.name not in values]
    groups = {group(leaf.name) for leaf in others}
    unknown = [*_ALWAYS, *(["the optimizer"] if "optimizer" in groups else ())]
    unknown += [x.path for x in others if group(x.name) in ("non_trainable", "extra")]
    return ImportRun(
        source=printable(os.fspath(source.path)),
        unknown=unknown,
        variables=variables.listed(leaf for leaf in leaves if leaf.name in values),
    )
