"""Recognises the format of an import's source, and reads its variables.

Every reader is safe: nothing is unpickled, and no code from the source runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras

from resilient.convert import keras_files, tensor_files
from resilient.convert.matching import by_name
from resilient.convert.tensor_files import Tensors
from resilient.errors import NotSupportedError, ResilientError, message
from resilient.serialization.schema import Count, SchemaError, from_json, parse
from resilient.storage.files import SMALL_BYTES, read_file

_WEIGHTS, _TRAINING = "latest.weights.h5", "training_metadata.json"
_BACKUP = "a BackupAndRestore directory"
_MODEL = "a .keras file"
_SAFETENSORS = "a safetensors file"
_ENDINGS = {
    ".weights.h5": "a .weights.h5 file",
    ".keras": _MODEL,
    ".safetensors": _SAFETENSORS,
}


@dataclass(frozen=True)
class ImportSource:
    """Something to start a run from.

    Attributes:
        path: Where it is.
        kind: Its name in messages.
        epoch: Epochs done, if it says so.
        batch: The last batch trained in the next epoch; 0 if none was.
    """

    path: Path
    kind: str
    epoch: int | None = None
    batch: int = 0

    @property
    def by_path(self) -> bool:
        """Whether it names its variables by their paths."""
        return self.kind == _SAFETENSORS

    def values(self, model: keras.Model) -> Tensors:
        """The values of the model's variables, by their names in a checkpoint.

        The model is not changed.

        Raises:
            CheckpointMismatchError: It lacks some, or has additional ones.
            BackendNotAvailableError: The library that reads it is missing.
            NotSupportedError: That library cannot read it.
        """
        if self.by_path:
            return by_name(self.path, self.named(), model)
        if self.kind == _MODEL:
            return self._read(partial(keras_files.read_model, self.path, model))
        weights = self.path / _WEIGHTS if self.kind == _BACKUP else self.path
        return self._read(partial(keras_files.read_weights, weights, model))

    def named(self) -> Tensors:
        """Its tensors by path, for a model that may have other variables, too.

        Raises:
            NotSupportedError: They have no paths, or cannot be read.
        """
        if not self.by_path:
            raise NotSupportedError(
                f"The variables in {self.kind} cannot be told apart by their paths.",
                received=self.path,
                hint="Leave out `start_layers` to take everything; or import it into "
                "its own model with `resilient import`, and start from that "
                "directory.",
            )
        return self._read(partial(tensor_files.read_safetensors, self.path))

    def _read(self, read: Callable[[], Tensors]) -> Tensors:
        try:
            return read()
        except ResilientError:
            raise
        except Exception as error:  # each library has its own for damaged files
            raise NotSupportedError(
                f"This cannot be read as {self.kind}.",
                received=f"{self.path}: {type(error).__name__}: {error}",
                hint="Import a file that its own library can load.",
            ) from error


def recognised(path: Path) -> ImportSource:
    """The source at a path.

    Raises:
        FileNotFoundError: Nothing is there.
        NotSupportedError: Its format cannot be imported.
    """
    # TensorFlow's checkpoints go by a path at which there is no file.
    if not (path.exists() or path.with_name(f"{path.name}.index").exists()):
        raise FileNotFoundError(
            message(
                "There is nothing to import at this path.",
                received=path,
                hint="Name a file or directory that exists.",
            )
        )
    if (path / _WEIGHTS).is_file():
        return ImportSource(path, _BACKUP, *_progress(path / _TRAINING))
    kinds = (kind for ending, kind in _ENDINGS.items() if path.name.endswith(ending))
    kind = next(kinds, None)
    if kind is None:
        raise NotSupportedError(
            "Unrecognised checkpoint format.",
            received=path,
            hint="Name a directory of BackupAndRestore, or a file that ends in "
            f"{', '.join(_ENDINGS)}. A checkpoint of torch, TensorFlow or Orbax has "
            "to be converted: load it into the model with the library that wrote it, "
            'and call model.save_weights("model.weights.h5").',
        )
    if not path.is_file():
        raise NotSupportedError(
            f"This is not {kind}: it is not a regular file.",
            received=path,
            hint="Import a file.",
        )
    return ImportSource(path, kind)


@dataclass(frozen=True)
class _Training:
    epoch: Count
    batch: Count


def _progress(metadata: Path) -> tuple[int | None, int]:
    """The epoch and batch that ``BackupAndRestore`` writes down."""
    try:
        found = from_json(
            _Training, parse(read_file(metadata.parent, metadata.name, SMALL_BYTES))
        )
    except FileNotFoundError:
        return None, 0
    except (SchemaError, OSError) as error:
        raise NotSupportedError(
            f"{_TRAINING} does not say how far training got.",
            received=f"{metadata}: {error!r}",
            hint=f"Import {metadata.with_name(_WEIGHTS)}, and pass the epoch.",
        ) from None
    return found.epoch, found.batch
