"""Recognises the format of an import's source, and reads its variables.

Every reader is safe: nothing is unpickled, and no code from the source runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras

from resilient.convert import keras_files, orbax_source, tensor_files, tf_source
from resilient.convert.matching import by_name
from resilient.convert.tensor_files import Tensors
from resilient.errors import (
    CorruptCheckpointError,
    NotSupportedError,
    ResilientError,
    message,
)
from resilient.serialization.schema import Count, SchemaError, from_json, parse
from resilient.storage.files import SMALL_BYTES, read_file

_WEIGHTS, _TRAINING = "latest.weights.h5", "training_metadata.json"
_BACKUP = "a BackupAndRestore directory"
_TENSORFLOW = "a TensorFlow checkpoint"
_ORBAX = "an Orbax checkpoint"
_ENDINGS = {
    ".weights.h5": "a .weights.h5 file",
    ".keras": "a .keras file",
    ".safetensors": "a safetensors file",
    ".pt": "a torch state_dict",
    ".pth": "a torch state_dict",
    ".bin": "a torch state_dict",
}

Read = Callable[[Path, keras.Model], Tensors]


def _named(read: Callable[[Path], Tensors]) -> Read:
    """Match the names of a source's tensors with the model's variables."""
    return lambda path, model: by_name(path, read(path), model)


# Formats that name each variable by its path, whichever model reads them.
_BY_PATH: dict[str, Callable[[Path], Tensors]] = {
    "a safetensors file": tensor_files.read_safetensors,
    "a torch state_dict": tensor_files.read_torch,
}
_READERS: dict[str, Read] = {
    _BACKUP: lambda path, model: keras_files.read_weights(path / _WEIGHTS, model),
    "a .weights.h5 file": keras_files.read_weights,
    "a .keras file": keras_files.read_model,
    **{kind: _named(read) for kind, read in _BY_PATH.items()},
    _TENSORFLOW: tf_source.values,
    _ORBAX: orbax_source.values,
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
        return self.kind in _BY_PATH

    def values(self, model: keras.Model) -> Tensors:
        """The values of the model's variables, by their names in a checkpoint.

        The model is not changed.

        Raises:
            CheckpointMismatchError: It lacks some, or has additional ones.
            BackendNotAvailableError: The library that reads it is missing.
            NotSupportedError: That library cannot read it.
        """
        return self._read(partial(_READERS[self.kind], self.path, model))

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
        return self._read(partial(_BY_PATH[self.kind], self.path))

    def _read(self, read: Callable[[], Tensors]) -> Tensors:
        try:
            return read()
        except Exception as error:  # each library has its own for damaged files
            told: object = f"{type(error).__name__}: {error}"
            if isinstance(error, CorruptCheckpointError):  # for a checkpoint of ours
                told = error.received
            elif isinstance(error, ResilientError):
                raise
            raise NotSupportedError(
                f"This cannot be read as {self.kind}.",
                received=f"{self.path}: {told}",
                hint="Import a file that its own library loads without unpickling.",
            ) from error


def recognised(path: Path) -> ImportSource:
    """The source at a path.

    Raises:
        FileNotFoundError: Nothing is there.
        NotSupportedError: Its format cannot be imported.
    """
    kind = _kind(path)
    if not (path.exists() or kind == _TENSORFLOW):
        raise FileNotFoundError(
            message(
                "There is nothing to import at this path.",
                received=path,
                hint="Name a file or directory that exists.",
            )
        )
    if kind is None:
        raise NotSupportedError(
            "Unrecognised checkpoint format.",
            received=path,
            hint="Import a directory of BackupAndRestore, a TensorFlow or an Orbax "
            f"checkpoint; or a file that ends in {', '.join(_ENDINGS)}.",
        )
    if kind in _ENDINGS.values() and not path.is_file():
        raise NotSupportedError(
            f"This is not {kind}: it is not a regular file.",
            received=path,
            hint="Import a file.",
        )
    epoch, batch = _progress(path / _TRAINING) if kind == _BACKUP else (None, 0)
    return ImportSource(path, kind, epoch, batch)


def _kind(path: Path) -> str | None:
    if (path / _WEIGHTS).is_file():
        return _BACKUP
    for ending, kind in _ENDINGS.items():
        if path.name.endswith(ending):
            return kind
    if tf_source.is_at(path):
        return _TENSORFLOW
    return _ORBAX if orbax_source.tree(path) is not None else None


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
