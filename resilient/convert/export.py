"""Exports a checkpoint to a file that other programs read.

It changes neither the checkpoint nor its run, which may be training meanwhile. Every
byte is verified first, and the target is written completely or not at all.

Importing this module loads neither Keras nor a backend.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resilient.convert.target import require_free, staged
from resilient.errors import NotSupportedError, message
from resilient.saving import choose, record
from resilient.saving.run_json import FitRun, ImportRun, RunJson
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.stores import open_readonly
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
    """Export a checkpoint to a Keras or safetensors file.

    Args:
        checkpoint_dir: That of a ``fit``; for ``.safetensors``, also of a ``Run`` or
            ``Checkpoints``.
        to: The file to write. Its suffix selects the format: ``.keras``,
            ``.weights.h5`` or ``.safetensors``.
        step: Which checkpoint; the newest by default.
        model: The built and compiled model, required for ``.keras`` and
            ``.weights.h5``. It is not changed.
        overwrite: Whether the target may be replaced.

    Returns:
        The path of the target.

    Raises:
        BackendNotAvailableError: A library is missing: safetensors, or the backend that
            saved the checkpoint.
        CheckpointMismatchError: The checkpoint does not match ``model``.
        CheckpointNotFoundError: There is no checkpoint, or none of that step.
        CheckpointWriteError: The file system failed; the target was not changed.
        CorruptCheckpointError: The checkpoint is damaged.
        FileExistsError: The target already exists, or is in a checkpoint.
        NotSupportedError: The format cannot hold the checkpoint, or needs the model.
        ValueError: The target's name has an unknown suffix.
    """
    target = Path(to).absolute()
    ending = ending_of(target)
    require_free(target, overwrite=overwrite)
    with open_readonly(checkpoint_dir) as store:
        checkpoint, saved = choose.intact(store, step, record.PartReader())
    with staged(target, ending, overwrite=overwrite) as path:
        if ending == ".safetensors":
            _write_tensors(path, checkpoint, saved)
        else:
            _write_model(path, checkpoint, saved, model)
    return target


def ending_of(target: Path) -> str:
    """The suffix of a target's name, which selects the format.

    Raises:
        ValueError: It selects none.
    """
    for ending in _ENDINGS:
        if target.name.endswith(ending):
            return ending
    raise ValueError(
        message(
            "The target's name does not say which format to write.",
            received=repr(target.name),
            hint=f"Use a name that ends in {', '.join(_ENDINGS[:-1])} or "
            f"{_ENDINGS[-1]}. TensorFlow, Orbax and torch can read the checkpoint "
            "itself: see the documentation of export.",
        )
    )


def _write_tensors(
    path: Path, checkpoint: Checkpoint, saved: record.SavedState[RunJson]
) -> None:
    """Every variable, in C order, by its path."""
    from resilient.convert import tensor_files

    variables = saved.run.variables
    missing = [v["path"] for v in variables if v["name"] not in saved.tensors]
    if missing:
        raise NotSupportedError(
            "Each replica has its own values of these variables, and no rule says "
            "how to merge them.",
            received=", ".join(missing),
            hint="Export a checkpoint that was saved with one replica.",
        )
    names = tensor_files.unique_names(v["path"] for v in variables)
    tensors = {
        name: np.asarray(saved.tensors[variable["name"]], order="C")
        for name, variable in zip(names, variables, strict=True)
    }
    notes = {k: str(v) for k, v in checkpoint.progress._asdict().items()}
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
            "A Keras file holds one model, and this checkpoint was not saved by a "
            "fit of one.",
            received=checkpoint.path,
            hint="Export its variables to .safetensors.",
        )
    if model is None:
        raise NotSupportedError(
            "Writing a Keras file needs the model. It is not rebuilt from the "
            "checkpoint, because Keras would import the modules and call the classes "
            "named there.",
            received=f"{checkpoint.path}, and no model",
            hint="Pass the built and compiled model or, on the command line, a "
            "function that returns it: --model module:function.",
        )
    keras_files.write(path, model, saved, checkpoint.path)
