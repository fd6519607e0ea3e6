"""A checkpoint, written as what other programs read.

Only read from, never changed: neither the checkpoint nor the run it belongs to, which
may be training meanwhile. Every byte is verified first, and the target comes into being
whole or not at all.

Importing this module loads neither Keras nor a backend.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resilient.backends import BACKENDS, get_backend
from resilient.convert.formats import Format, format_of, named_tensors
from resilient.convert.formats.target import require_free, staged
from resilient.errors import CorruptCheckpointError, NotSupportedError
from resilient.saving import record
from resilient.saving.choose import not_found
from resilient.saving.run_json import FitRun, ImportRun, RunJson
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.store import Store

if TYPE_CHECKING:
    import keras


def export(
    checkpoint_dir: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    step: int | None = None,
    format: Format | None = None,
    model: "keras.Model | None" = None,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint as a file, or directory, of another format.

    Args:
        checkpoint_dir: Of ``fit`` or of ``Checkpoints``.
        to: The file or directory to write. The end of its name tells the format:
            ``.keras``, ``.weights.h5``, ``.safetensors``, ``.tf``, ``.orbax``,
            ``.pt``, ``.pth`` or ``.torch``; so does a name that is one of these words.
        step: Which checkpoint; the newest by default.
        format: ``"keras"``, ``"weights.h5"``, ``"safetensors"``, ``"tf"``, ``"orbax"``
            or ``"torch"``, for other names.
        model: For ``.keras`` and ``.weights.h5``: the model, built and compiled, where
            the checkpoint does not tell how to make it. It is left as it is.
        overwrite: Whether the target may be replaced.

    Returns:
        The path of the target.

    Raises:
        BackendNotAvailableError: A library is missing: that of the format, or that of
            the backend that saved.
        CheckpointMismatchError: The checkpoint is not of ``model``.
        CheckpointNotFoundError: There is none, or none of that step.
        CheckpointWriteError: The file system failed; the target is as it was.
        CorruptCheckpointError: It is damaged.
        FileExistsError: The target is there already.
        NotSupportedError: The format cannot hold it.
        ValueError: Nothing tells the format.
    """
    target = Path(to).absolute()
    kind = format_of(target, format)
    require_free(target, overwrite=overwrite)
    checkpoint = choose(Store(checkpoint_dir), step)
    saved = _load(checkpoint)
    with staged(target, overwrite=overwrite) as path:
        if kind in ("keras", "weights.h5"):
            _write_model(kind, path, checkpoint, saved, model)
        else:
            notes = {k: str(v) for k, v in checkpoint.progress.to_json().items()}
            named_tensors.write(kind, path, _named(saved), notes)
    return target


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
        "The checkpoint does not tell which backend saved it.",
        received=f"{checkpoint.path}: {dict(checkpoint.environment)}",
        hint="Export a checkpoint of fit, or of Checkpoints.",
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


def _named(saved: record.SavedState[RunJson]) -> Mapping[str, np.ndarray]:
    """Every variable, in C order, by its path."""
    variables = saved.run.variables
    missing = [v["path"] for v in variables if v["name"] not in saved.tensors]
    if missing:
        raise NotSupportedError(
            "Each replica had values of its own, and no rule makes one of them.",
            received=", ".join(missing),
            hint="Export a checkpoint of one replica.",
        )
    names = named_tensors.unique_names(v["path"] for v in variables)
    return {
        name: np.asarray(saved.tensors[variable["name"]], order="C")
        for name, variable in zip(names, variables, strict=True)
    }


def _write_model(
    kind: Format,
    path: Path,
    checkpoint: Checkpoint,
    saved: record.SavedState[RunJson],
    model: Any,
) -> None:
    from resilient.convert.formats import keras_files
    from resilient.state import model_config

    if not (record.is_of(saved, FitRun) or record.is_of(saved, ImportRun)):
        raise NotSupportedError(
            f"The checkpoint is not of one model, as a {kind} file is.",
            received=f"{checkpoint.path}, which fit did not save",
            hint="Export its variables: to safetensors, tf, orbax or torch.",
        )
    if model is None:
        model = model_config.model_from_checkpoint(
            getattr(saved.run, "architecture", None)
        )
    keras_files.write(kind, path, model, saved=saved, source=checkpoint.path)
