"""A checkpoint, written as a file that other programs read.

Neither the checkpoint nor its run, which may be training meanwhile, is changed. Every
byte is verified first, and the target is written completely or not at all.

Importing this module loads neither Keras nor a backend.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resilient.backends import BACKENDS, get_backend
from resilient.convert.target import require_free, staged
from resilient.errors import CorruptCheckpointError, NotSupportedError, message
from resilient.saving import record
from resilient.saving.choose import not_found
from resilient.saving.run_json import FitRun, ImportRun, RunJson
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.store import Store
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

_ENDINGS = (".keras", ".weights.h5", ".safetensors")


@ending_at_user_line
def export(
    checkpoint_dir: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    step: int | None = None,
    model: "keras.Model | None" = None,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint as a file of Keras or of safetensors.

    Args:
        checkpoint_dir: Of ``fit``; for ``.safetensors`` also of ``Run`` or
            ``Checkpoints``.
        to: The file to write. Its ending selects the format: ``.keras``,
            ``.weights.h5`` or ``.safetensors``.
        step: Which checkpoint; the newest by default.
        model: For ``.keras`` and ``.weights.h5``, which need it: the model, built and
            compiled. It is left as it is.
        overwrite: Whether the target may be replaced.

    Returns:
        The path of the target.

    Raises:
        BackendNotAvailableError: A library is missing: safetensors, or that of the
            backend that saved.
        CheckpointMismatchError: The checkpoint is not of ``model``.
        CheckpointNotFoundError: There is none, or none of that step.
        CheckpointWriteError: The file system failed; the target is as it was.
        CorruptCheckpointError: It is damaged.
        FileExistsError: The target exists already.
        NotSupportedError: The format cannot hold it, or needs the model.
        ValueError: The name of the target has another ending.
    """
    target = Path(to).absolute()
    ending = ending_of(target)
    require_free(target, overwrite=overwrite)
    checkpoint = choose(Store(checkpoint_dir), step)
    saved = _load(checkpoint)
    with staged(target, ending, overwrite=overwrite) as path:
        if ending == ".safetensors":
            _write_tensors(path, checkpoint, saved)
        else:
            _write_model(path, checkpoint, saved, model)
    return target


def ending_of(target: Path) -> str:
    """The end of a target's name, which selects the format.

    Raises:
        ValueError: It does not.
    """
    for ending in _ENDINGS:
        if target.name.endswith(ending):
            return ending
    raise ValueError(
        message(
            "The name does not say which format to write.",
            received=repr(target.name),
            hint=f"Let it end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}. What "
            "TensorFlow, Orbax or torch reads is in the checkpoint already, see the "
            "documentation of export.",
        )
    )


def choose(store: Store, step: int | None) -> Checkpoint:
    """The checkpoint of a step, or the newest one; only its manifest was read.

    Raises:
        CheckpointNotFoundError: There is none.
        CorruptCheckpointError: The manifest is damaged.
    """
    steps = layout.committed_steps(store.directory)
    if not steps:
        raise not_found(store.directory)
    return store.read(steps[-1] if step is None else step)


def backend_of(checkpoint: Checkpoint) -> str:
    """The backend that saved a checkpoint."""
    for name in BACKENDS:
        if name in checkpoint.environment:
            return name
    raise NotSupportedError(
        "The checkpoint does not say which backend saved it.",
        received=f"{checkpoint.path}: {dict(checkpoint.environment)}",
        hint="Export a checkpoint of fit, Run or Checkpoints.",
    )


def _load(checkpoint: Checkpoint) -> record.SavedState[RunJson]:
    reader = record.reader(get_backend(backend_of(checkpoint)), to_look=True)
    try:
        return checkpoint.load(reader)
    except DamageError as error:
        if not checkpoint.path.exists():
            raise not_found(checkpoint.path) from None  # just pruned
        raise CorruptCheckpointError(
            f"The checkpoint of step {checkpoint.step} is damaged.",
            received=f"{checkpoint.path}: {error}",
            hint="Export another step; `resilient verify` says which are good.",
        ) from None


def _write_tensors(
    path: Path, checkpoint: Checkpoint, saved: record.SavedState[RunJson]
) -> None:
    """Every variable, in C order, by its path."""
    from resilient.convert import tensor_files

    variables = saved.run.variables
    missing = [v["path"] for v in variables if v["name"] not in saved.tensors]
    if missing:
        raise NotSupportedError(
            "Each replica had values of its own, and no rule merges them.",
            received=", ".join(missing),
            hint="Export a checkpoint of one replica.",
        )
    names = tensor_files.unique_names(v["path"] for v in variables)
    tensors = {
        name: np.asarray(saved.tensors[variable["name"]], order="C")
        for name, variable in zip(names, variables, strict=True)
    }
    notes = {k: str(v) for k, v in checkpoint.progress.to_json().items()}
    tensor_files.write_safetensors(path, tensors, notes)


def _write_model(
    path: Path,
    checkpoint: Checkpoint,
    saved: record.SavedState[RunJson],
    model: "keras.Model | None",
) -> None:
    from resilient.convert import keras_files

    if not (record.is_of(saved, FitRun) or record.is_of(saved, ImportRun)):
        raise NotSupportedError(
            "The checkpoint is not of one model, as a file of Keras is.",
            received=f"{checkpoint.path}, which fit did not save",
            hint="Export its variables to .safetensors.",
        )
    if model is None:
        raise NotSupportedError(
            "A file of Keras takes the model, which is not made of what a checkpoint "
            "says: Keras would import the modules and make the classes that it names.",
            received=f"{checkpoint.path}, and no model",
            hint="Pass the model, built and compiled, or on the command line a "
            "function that makes it: --model module:function. If you trust the "
            "checkpoint, keras.models.model_from_json makes it of `architecture` in "
            "its run.json.",
        )
    keras_files.write(path, model, saved, checkpoint.path)
