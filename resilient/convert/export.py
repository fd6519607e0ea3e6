"""Exports a checkpoint to a file that other programs read.

It changes neither the checkpoint nor its run, which may be training meanwhile. Every
byte is verified first, and the target is written completely or not at all.

Importing this module loads neither Keras nor a backend.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resilient.convert.tensors import mismatch, safetensors, unique_names
from resilient.errors import NotSupportedError, message, warn_not_exact
from resilient.saving import choose, record
from resilient.saving.run_json import RunJson
from resilient.storage import files
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.stores import open_readonly
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    import keras

_BESIDE = 1 << 13  # bytes in an HDF5 file for each variable and its layer, at most
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
        CorruptCheckpointError: The checkpoint is damaged.
        FileExistsError: The target already exists.
        NotSupportedError: The format cannot hold the checkpoint, or needs the model.
        OSError: The file system failed; the target was not changed.
        ValueError: The target's name has an unknown suffix.
    """
    target = Path(to).absolute()
    ending = next(filter(target.name.endswith, _ENDINGS), "")
    if not ending:
        raise ValueError(
            message(
                "The target's name does not say which format to write.",
                received=repr(target.name),
                hint=f"Use a name that ends in {', '.join(_ENDINGS)}. TensorFlow, "
                "Orbax and torch can read the checkpoint itself: see the documentation "
                "of export.",
            )
        )
    _require_free(target, overwrite=overwrite)
    with open_readonly(checkpoint_dir) as store:
        checkpoint, saved = choose.intact(store, step, record.PartReader())
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as directory:
        path = Path(directory, f"export{ending}")
        if ending == ".safetensors":
            _write_tensors(path, checkpoint, saved)
        else:
            _write_model(path, checkpoint, saved, model)
        files.sync(path)
        _require_free(target, overwrite=overwrite)
        os.replace(path, target)
    files.sync(target.parent)
    return target


def _write_tensors(
    path: Path, checkpoint: Checkpoint, saved: record.SavedState[RunJson]
) -> None:
    """Write every variable, in C order, by its path."""
    listed, tensors, lost = saved.run.variables, {}, []
    for name, each in zip(unique_names(v["path"] for v in listed), listed, strict=True):
        if each["name"] in saved.tensors and each["dtype"] != "complex128":
            tensors[name] = np.asarray(saved.tensors[each["name"]], order="C")
        else:
            lost.append(name)
    if lost:
        raise NotSupportedError(
            "A safetensors file cannot hold these variables: they are complex128, or "
            "each replica has its own values, and no rule merges them.",
            received=", ".join(lost),
            hint="Read the checkpoint itself with its backend's library.",
        )
    notes = {k: str(v) for k, v in checkpoint.progress._asdict().items()}
    path.write_bytes(safetensors().save(tensors, metadata=notes))


def _write_model(
    path: Path,
    checkpoint: Checkpoint,
    saved: record.SavedState[RunJson],
    model: "keras.Model | None",
) -> None:
    """Save weights and optimizer as Keras would; the model is restored.

    Raises:
        CheckpointMismatchError: The checkpoint is of another model.
        NotSupportedError: Keras would not save all of it.
    """
    from resilient.backends import get_backend
    from resilient.convert import keras_files
    from resilient.state import variables, weights

    if model is None:
        raise NotSupportedError(
            "A Keras file holds one model, which is not rebuilt from the checkpoint, "
            "because Keras would import the modules and call the classes named there.",
            received=f"{checkpoint.path}, saved by {saved.run.saved_by}",
            hint="Pass the built and compiled model of the fit that saved or, on the "
            "command line, a function that returns it: --model module:function. What "
            "Run or Checkpoints saved can be exported to .safetensors.",
        )
    backend, live = get_backend(), weights.ready(model)
    with variables.kept(backend, live):
        weights.put(model, saved.run.variables, saved.tensors, checkpoint.path)
        if path.suffix == ".keras" and (differ := _other_layers(model, saved.run)):
            raise mismatch(checkpoint.path, differ)
        put = backend.snapshot(variables.tensors(live)).arrays
        expected = {name: value.tobytes() for name, value in put.items()}
        _require_room(path, expected.values())
        keras_files.save(model, path)
        found = keras_files.set_by(path, model, live)
    lost = [
        leaf.path
        for name, leaf in weights.needed(model, live).items()
        if name not in found or found[name].tobytes() != expected[name]
    ]
    if lost:
        raise NotSupportedError(
            "Keras does not save and load the whole model in this format.",
            received="\n  " + "\n  ".join(lost),
            hint="Export to .safetensors, which holds every variable.",
        )
    listed = saved.run.variables
    if extra := [v["path"] for v in listed if weights.group(v["name"]) == "extra"]:
        warn_not_exact(f"{path.suffix} files cannot hold these variables", extra)


def _other_layers(model: "keras.Model", run: RunJson) -> list[str]:
    """How the layers compute something else than those of a fit, in words."""
    from resilient.state import comparison, fingerprint

    layers, saved = fingerprint.of_layers(model), getattr(run, "fingerprint", {})
    live = {part: {**saved[part], **layers[part]} for part in saved}
    found = comparison.compare(saved, live) if saved else []  # an import has none
    return [each.line for each in found if each.of in ("run", "config")]


def _require_room(path: Path, values: Collection[bytes]) -> None:
    """Raise OSError if the disk is too full, where libhdf5 may end the process."""
    size = sum(map(len, values)) + len(values) * _BESIDE
    if shutil.disk_usage(path.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))


def _require_free(target: Path, *, overwrite: bool) -> None:
    """Refuse an existing target, unless it is a file that may be replaced."""
    if os.path.isdir(target) or (os.path.lexists(target) and not overwrite):
        raise FileExistsError(
            message(
                "The target already exists.",
                received=target,
                hint="Choose another target. A file may be replaced, with "
                "overwrite=True (on the command line: --force).",
            )
        )
