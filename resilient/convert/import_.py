"""Starting a run from what people have already: complete, or refused.

Every weight of the model is set from the source, and every tensor of the source is
used; the same goes for the optimizer where the source has one. What no source tells
(where the data is, random state, callbacks) is said, and begins anew.

Importing this module loads neither Keras nor a backend.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.errors import NotSupportedError, ResilientError, message
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import ImportRun
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store

if TYPE_CHECKING:
    import keras
    import numpy as np

    from resilient.convert.formats.sources import ImportSource
    from resilient.state.variables import Leaf

_ALWAYS = ("the position in the data", "callbacks, History and metrics")


def import_checkpoint(
    source: str | os.PathLike[str],
    model: "keras.Model",
    *,
    checkpoint_dir: str | os.PathLike[str],
    epoch: int | None = None,
    step: int | None = None,
) -> Checkpoint:
    """Make a checkpoint, from which the next ``fit`` goes on, of what others wrote.

    That ``fit`` begins at the beginning of an epoch with the weights of the source, and
    with the optimizer where the source has it. A ``NotExactWarning`` names what the
    source does not tell.

    Args:
        source: A directory of ``BackupAndRestore``, a TensorFlow checkpoint (a
            directory, or the prefix of its files) or an Orbax checkpoint; or a file
            ``.keras``, ``.weights.h5``, or a torch ``state_dict`` in ``.pt``, ``.pth``
            or ``.bin``.
        model: The model, built and compiled; it is left as it is.
        checkpoint_dir: Local directory of the run; made if missing. There must not be
            a checkpoint in it.
        epoch: How many epochs are done, so at which one to begin, counted from 0. A
            ``BackupAndRestore`` directory knows it; one that was saved in the middle of
            an epoch asks for it all the same, since that epoch cannot be continued.
        step: How many batches are done; if None, what the optimizer counted.

    Returns:
        The checkpoint.

    Raises:
        CheckpointMismatchError: The source lacks variables of the model, or has others,
            or of another shape or type; all are listed. Nothing was changed.
        BackendNotAvailableError: The library that reads the source is missing.
        DirectoryInUseError: A run is using ``checkpoint_dir``.
        NotSupportedError: It is in no format that can be imported.
        ResilientError: ``checkpoint_dir`` has checkpoints.
        ValueError: ``epoch`` or ``step`` is to be told, or cannot be as it is told.
    """
    from resilient.convert.formats.sources import recognised
    from resilient.state.variables import require_model

    require_model(model)
    _require_compiled_alone(model)
    store, found = Store(checkpoint_dir), recognised(Path(source).absolute())
    _require_empty(store)
    epoch = _epoch(found, epoch)
    values = found.values(model)
    step = _step(model, values, epoch, step)
    with DirectoryLock(store.directory):
        store.remove_stale_staging()
        _require_empty(store)
        return _commit(store, found, model, values, Progress(step, epoch, 0))


def _commit(
    store: Store,
    source: "ImportSource",
    model: "keras.Model",
    values: "Mapping[str, np.ndarray]",
    progress: Progress,
) -> Checkpoint:
    from resilient.backends import get_backend
    from resilient.state import variables

    backend = get_backend()
    leaves = [leaf for leaf in variables.leaves(model) if leaf.name in values]
    unknown = _unknown(model, leaves)
    run = ImportRun(
        source=os.fspath(source.path),
        unknown=unknown,
        variables=[leaf.to_json() for leaf in leaves],
        tensors=sorted(values),
    )
    checkpoint = record.commit(store, progress, run, values, backend)
    run.warn()
    return checkpoint


def _epoch(source: "ImportSource", told: int | None) -> int:
    """The epoch to begin at."""
    received = f"epoch={told!r}, {source.kind}: epoch {source.epoch}"
    if told is not None and told < 0:
        raise ValueError(
            message("There is no such epoch.", received=received, hint="Count from 0.")
        )
    if source.batch and told is None:
        raise ValueError(
            message(
                "The source was saved in the middle of an epoch, and where its data "
                "was is not known: going on exactly is impossible.",
                received=f"{received}, batch {source.batch}",
                hint=(
                    f"Pass epoch={source.epoch} to train that epoch from its beginning "
                    "(some batches twice, as Keras would), or "
                    f"epoch={(source.epoch or 0) + 1} to leave the rest of it out."
                ),
            )
        )
    if source.epoch is None and told is None:
        raise ValueError(
            message(
                "The source does not tell how many epochs are done.",
                received=received,
                hint="Pass epoch, 0 for a new training: on the command line --epoch.",
            )
        )
    if told is not None and source.epoch not in (None, told) and not source.batch:
        raise ValueError(
            message(
                "The source tells another epoch.",
                received=received,
                hint="Leave out the argument.",
            )
        )
    return told if told is not None else int(source.epoch or 0)


def _step(
    model: "keras.Model",
    values: "Mapping[str, np.ndarray]",
    epoch: int,
    told: int | None,
) -> int:
    """How many batches are done."""
    from resilient.state import variables

    if told is not None:
        if told < epoch:
            raise ValueError(
                message(
                    "There are more epochs than steps.",
                    received=told,
                    hint="Pass all batches.",
                )
            )
        return told
    for leaf in variables.leaves(model):
        if leaf.name in values and leaf.target is model.optimizer.iterations:
            return int(values[leaf.name])
    if epoch:
        raise ValueError(
            message(
                "The source does not tell how many batches are done.",
                received=f"epoch={epoch}, and no optimizer",
                hint="Pass step, too: on the command line --step.",
            )
        )
    return 0


def _unknown(model: "keras.Model", leaves: "list[Leaf]") -> list[str]:
    """What the source does not tell, for people."""
    from resilient.state import variables
    from resilient.state.weights import GROUPS, group

    known = {leaf.name for leaf in leaves}
    others = [leaf for leaf in variables.leaves(model) if leaf.name not in known]
    groups = {group(leaf.name) for leaf in others}
    found = [*_ALWAYS, "the random state"]
    if "optimizer" in groups:
        found.append("the optimizer")
    rest = (*GROUPS[:2], "extra")
    return found + [leaf.path for leaf in others if group(leaf.name) in rest]


def _require_compiled_alone(model: "keras.Model") -> None:
    from resilient.state import replicas

    problem = ""
    if not model.built:
        problem = "it is not built"
    elif getattr(model, "optimizer", None) is None:
        problem = "it is not compiled"
    elif replicas.count(model) > 1:
        problem = "it has several replicas"
    if problem:
        raise NotSupportedError(
            "The model to import into has to be built and compiled, on one device.",
            received=problem,
            hint=(
                "Call it on a batch, or give it a keras.Input, and compile it. The fit "
                "that goes on may use a strategy."
            ),
        )


def _require_empty(store: Store) -> None:
    names = [*map(layout.committed_name, layout.committed_steps(store.directory))]
    if (store.directory / layout.ROLLBACKS).exists():
        names.append(layout.ROLLBACKS)
    if names:
        raise ResilientError(
            "A run can begin from an import only where there is none.",
            received=f"{store.directory} has {', '.join(names)}",
            hint="Use another checkpoint_dir.",
        )
