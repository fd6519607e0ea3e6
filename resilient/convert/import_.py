"""Starts a run from what Keras or safetensors wrote: completely, or not at all.

Every weight of the model is set from the source, and every tensor of the source is
used; the same goes for the optimizer, if the source has its state. What no source holds
(the position of the data, random state, callbacks) starts over, and a warning says so.

Importing this module loads neither Keras nor a backend.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.errors import NotSupportedError, ResilientError, message, printable
from resilient.progress import Progress
from resilient.saving.run_json import ImportRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Unchanged, commit
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.storage.stores import store_of, wait_for_uploads
from resilient.telemetry.events import Events
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

    from resilient.convert.recognise import ImportSource
    from resilient.convert.tensor_files import Tensors
    from resilient.state.variables import Leaf

_ALWAYS = ("the position in the data", "callbacks, History and metrics")


@ending_at_user_line
def import_checkpoint(
    source: str | os.PathLike[str],
    model: "keras.Model",
    *,
    checkpoint_dir: str | os.PathLike[str],
    epoch: int | None = None,
    step: int | None = None,
) -> Checkpoint:
    """Convert a file of Keras or safetensors into what ``fit`` resumes from.

    That ``fit`` starts at the beginning of an epoch with the source's weights, and with
    its optimizer state if there is one. A ``NotExactWarning`` names what the source
    lacks.

    Args:
        source: A directory of ``BackupAndRestore``, or a file ``.keras``,
            ``.weights.h5`` or ``.safetensors``.
        model: The built and compiled model. It is not changed.
        checkpoint_dir: The run's directory, as in ``fit``. It must not contain a
            checkpoint.
        epoch: How many epochs were trained, and so the number of the next one, counted
            from 0. Not needed for a ``BackupAndRestore`` directory, unless that was
            saved in the middle of an epoch, from where it cannot continue.
        step: How many batches were trained; by default, the optimizer's count.

    Returns:
        The checkpoint.

    Raises:
        CheckpointMismatchError: The source lacks variables of the model, has additional
            ones, or has different shapes or dtypes; all are listed. Nothing was
            changed.
        BackendNotAvailableError: The source needs safetensors, which is missing.
        DirectoryInUseError: A run is using ``checkpoint_dir``.
        NotSupportedError: The source's format cannot be imported.
        ResilientError: ``checkpoint_dir`` already has checkpoints.
        ValueError: ``epoch`` or ``step`` is missing or impossible.
    """
    from resilient.convert.recognise import recognised
    from resilient.keras_internals import require_model

    require_model(model)
    _require_compiled_alone(model)
    store, found = store_of(checkpoint_dir), recognised(Path(source).absolute())
    _require_empty(store)
    epoch = _epoch(found, epoch)
    values = found.values(model)
    step = _step(model, values, epoch, step)
    with store.opened():
        _require_empty(store)
        made = _commit(store, found, model, values, Progress(step, epoch, 0))
        wait_for_uploads(store)
    return made


def _commit(
    store: Store,
    source: "ImportSource",
    model: "keras.Model",
    values: "Tensors",
    progress: Progress,
) -> Checkpoint:
    from resilient.backends import get_backend
    from resilient.state import fingerprint, variables

    backend = get_backend()
    leaves = [leaf for leaf in variables.leaves(model) if leaf.name in values]
    unknown = _unknown(model, leaves)
    run = ImportRun(
        source=printable(os.fspath(source.path)),
        unknown=unknown,
        variables=[leaf.to_json() for leaf in leaves],
    )
    snapshot = Snapshot(run, NOWHERE, backend.snapshot(values), progress)
    made_by = fingerprint.environment(backend)
    checkpoint = commit(store, snapshot, made_by, Unchanged())
    saved = {**progress._asdict(), "nbytes": checkpoint.nbytes}
    Events(store.directory).emit("saved", **saved)
    run.warn()
    return checkpoint


def _epoch(source: "ImportSource", given: int | None) -> int:
    """The epoch to start at."""
    known = source.epoch
    received = f"epoch={given!r}, {source.kind}: epoch {known}"
    if given is not None and given < 0:
        raise _wrong("There is no such epoch.", received, "Count from 0.")
    if given is None and source.batch:
        raise _wrong(
            "The source was saved in the middle of an epoch, and its position in the "
            "data is not known: it cannot be continued exactly.",
            f"{received}, batch {source.batch}",
            f"Pass epoch={known} to train that epoch from its beginning (some batches "
            f"twice, as Keras would), or epoch={(known or 0) + 1} to skip the rest of "
            "it.",
        )
    if given is None and known is None:
        raise _wrong(
            "The source does not say how many epochs are done.",
            received,
            "Pass epoch (on the command line: --epoch); 0 starts from the first epoch.",
        )
    if given is not None and known not in (None, given) and not source.batch:
        raise _wrong(
            "The source was saved at a different epoch.", received, "Leave out `epoch`."
        )
    return given if given is not None else int(known or 0)


def _step(
    model: "keras.Model", values: "Tensors", epoch: int, given: int | None
) -> int:
    """How many batches are done."""
    from resilient.state import variables

    if given is not None:
        if given < epoch:
            received = f"step={given}, epoch={epoch}"
            raise _wrong(
                "There are more epochs than steps.",
                received,
                "`step` counts the batches of all epochs.",
            )
        return given
    for leaf in variables.leaves(model):
        if leaf.name in values and leaf.target is model.optimizer.iterations:
            return int(values[leaf.name])
    if epoch:
        raise _wrong(
            "The source does not say how many batches are done.",
            f"epoch={epoch}, and no optimizer",
            "Pass step, too (on the command line: --step).",
        )
    return 0


def _wrong(problem: str, received: str, hint: str) -> ValueError:
    return ValueError(message(problem, received=received, hint=hint))


def _unknown(model: "keras.Model", leaves: "list[Leaf]") -> list[str]:
    """What the source does not hold, in words."""
    from resilient.state import variables
    from resilient.state.weights import group

    known = {leaf.name for leaf in leaves}
    others = [leaf for leaf in variables.leaves(model) if leaf.name not in known]
    found = [*_ALWAYS, "the random state"]
    if any(group(leaf.name) == "optimizer" for leaf in others):
        found.append("the optimizer")
    summed_up = ("optimizer", "metrics")
    return found + [leaf.path for leaf in others if group(leaf.name) not in summed_up]


def _require_compiled_alone(model: "keras.Model") -> None:
    from resilient.keras_internals import replicas

    problem = ""
    if not model.built:
        problem = "it is not built"
    elif getattr(model, "optimizer", None) is None:
        problem = "it is not compiled"
    elif replicas.count(model) > 1:
        problem = "it has several replicas"
    if problem:
        raise NotSupportedError(
            "The model to import into must be built and compiled, and on one device.",
            received=problem,
            hint="Call it on a batch, or give it a keras.Input, and compile it. The "
            "fit that resumes may use a distribution strategy.",
        )


def _require_empty(store: Store) -> None:
    names = [*map(layout.committed_name, store.steps())]
    if (store.directory / layout.ROLLBACKS).exists():
        names.append(layout.ROLLBACKS)
    if names:
        raise ResilientError(
            "This directory already has a run, and an import starts a new one.",
            received=f"{store} has {', '.join(names)}",
            hint="Use another checkpoint_dir.",
        )
