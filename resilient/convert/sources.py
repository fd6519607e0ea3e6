"""Reads what a run can start from: a run, or a file of Keras or safetensors.

Every source becomes tensors by the paths of variables. Nothing is unpickled, and no
code from the source runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from resilient.convert import keras_files
from resilient.convert.tensors import Tensors, safetensors, unique_names
from resilient.errors import NotSupportedError, ResilientError
from resilient.saving import choose, record
from resilient.saving.run_json import LoopRun, RunJson
from resilient.serialization.schema import parse
from resilient.state.variables import Leaf
from resilient.state.weights import GROUPS, group
from resilient.storage import layout
from resilient.storage.files import SMALL_BYTES, read_file
from resilient.storage.store import Store

_WEIGHTS, _TRAINING = "latest.weights.h5", "training_metadata.json"
_SAFETENSORS = ".safetensors"
_ENDINGS = (".keras", ".weights.h5", _SAFETENSORS)
_SEED = "seed_generator_state"  # how Keras calls a variable that is no weight


@dataclass(frozen=True)
class Source:
    """Something to start from.

    Attributes:
        path: The file to read, or the checkpoint.
        saved: What the checkpoint holds.
        epoch: How many epochs are done, if the source says so.
        batch: How many batches of the next one.
        step: How many batches in all, if the source says so.
    """

    path: Path
    saved: record.SavedState[RunJson] | None = None
    epoch: int | None = None
    batch: int = 0
    step: int | None = None

    def tensors(
        self,
        model: keras.layers.Layer,
        ours: Mapping[str, Leaf],
        weights_of: str | None = None,
    ) -> Tensors:
        """The tensors of the source, by path; the model is unchanged.

        Args:
            model: The built model, into which Keras loads its files.
            ours: Variables that a run may set in their order.
            weights_of: None for everything that an import takes. Else only weights, of
                the model that has this name in the loop that saved, if there is one.

        Raises:
            BackendNotAvailableError: safetensors is missing.
            CheckpointMismatchError: A file of Keras is of another model.
            NotSupportedError: The source cannot be read.
        """
        if self.saved is not None:
            return _of_run(self.saved, ours, weights_of)
        try:
            if self.path.suffix == _SAFETENSORS:
                return dict(safetensors().load_file(self.path))
            return keras_files.read(self.path, model)
        except ResilientError:
            raise
        except Exception as error:  # each library has its own for damaged files
            raise NotSupportedError(
                "This file cannot be loaded: it is damaged or of another format, or "
                "this is not a whole model.",
                received=f"{self.path}: {type(error).__name__}: {error}",
                hint="Use a file that its own library can load into this model.",
            ) from error


def find(path: Path) -> Source:
    """The source at a path: a run's newest checkpoint, another one, or a file.

    Raises:
        CorruptCheckpointError: The checkpoint is damaged.
        NotSupportedError: There is nothing that can be imported.
    """
    if path.is_dir():
        if layout.committed_steps(path):
            return _checkpoint(Store(path), None)
        step = layout.find_step(path.name)
        if step in layout.committed_steps(path.parent):
            return _checkpoint(Store(path.parent), step)
        if (path / _WEIGHTS).is_file():
            return Source(path / _WEIGHTS, None, *_trained(path))
    if path.name.endswith(_ENDINGS) and path.is_file():
        return Source(path)
    raise NotSupportedError(
        "There is nothing at this path that a run can start from.",
        received=path,
        hint="Name the local directory of a run that has saved, one of its "
        "checkpoints, a directory of BackupAndRestore, or a file that ends in "
        f"{', '.join(_ENDINGS)}. A run in an object store can be exported to such a "
        "file (`resilient export ADDRESS --to model.safetensors`). A checkpoint of "
        "torch, TensorFlow, Orbax or another library has to be converted: load it into "
        'the model with that library, and call model.save_weights("x.weights.h5").',
    )


def _checkpoint(store: Store, step: int | None) -> Source:
    checkpoint, saved = choose.intact(store, step, record.PartReader())
    done = checkpoint.progress
    return Source(checkpoint.path, saved, done.epoch, done.batch, done.step)


def _of_run(
    saved: record.SavedState[RunJson],
    ours: Mapping[str, Leaf],
    weights_of: str | None,
) -> Tensors:
    """The variables of a checkpoint by path or, if all fit so, in our order.

    The names that Keras gives by itself differ from one process to the next.
    """
    run, groups = saved.run, GROUPS if weights_of is None else GROUPS[:2]
    listed = run.variables
    if isinstance(run, LoopRun) and weights_of in run.models:
        listed = [v for v in listed if v["name"].split(".")[1] == weights_of]
    names = unique_names(each["path"] for each in listed)
    found = {
        name: each
        for name, each in zip(names, listed, strict=True)
        if group(each["name"]) in groups
        and not (weights_of is not None and each["path"].endswith(_SEED))
        # What each replica had for itself has no value for all.
        and each["name"] in saved.tensors
    }
    there = [(group(v["name"]), (*v["shape"],), v["dtype"]) for v in found.values()]
    here = [(leaf.slot[0], leaf.shape, leaf.dtype) for leaf in ours.values()]
    if there == here and found.keys() != ours.keys():
        found = dict(zip(ours, found.values(), strict=True))
    return {n: np.asarray(saved.tensors[each["name"]]) for n, each in found.items()}


def _trained(backup: Path) -> tuple[int | None, int]:
    """The epoch and batch that ``BackupAndRestore`` writes down, if it does."""
    try:
        found = parse(read_file(backup, _TRAINING, SMALL_BYTES))
        return int(found["epoch"]), int(found["batch"])
    except (OSError, LookupError, TypeError, ValueError):
        return None, 0
