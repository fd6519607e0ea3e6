"""What an import starts from: which kind it is, and the variables that it holds.

Read by the libraries that wrote it, by their safe ways only: nothing is unpickled, and
no code of the source runs.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

from resilient.convert.formats import (
    keras_sources,
    orbax_source,
    tf_source,
    torch_source,
)
from resilient.errors import NotSupportedError, ResilientError, message

_WEIGHTS, _TRAINING = "latest.weights.h5", "training_metadata.json"


@dataclass(frozen=True)
class ImportSource:
    """Something to start a run from.

    Attributes:
        path: Where it is.
        kind: What it is, for people.
        epoch: Epochs done, if it knows.
        batch: Of the next epoch the last batch that was trained; 0 if none was.
    """

    path: Path
    kind: str
    epoch: int | None = None
    batch: int = 0

    def values(self, model: keras.Model) -> Mapping[str, np.ndarray]:
        """The values of the model's variables, by their names in a checkpoint.

        The model is as it was in the end.

        Raises:
            CheckpointMismatchError: It lacks some, or has others.
            BackendNotAvailableError: The library that reads it is missing.
            NotSupportedError: That library cannot read it.
        """
        try:
            return _READERS[self.kind](self.path, model)
        except ResilientError:
            raise
        except Exception as error:  # each library has its own for what is damaged
            raise NotSupportedError(
                f"This cannot be read as {self.kind}.",
                received=f"{self.path}: {type(error).__name__}: {error}",
                hint="Import what its library reads in its safe way.",
            ) from error


_READERS: dict[str, Callable[[Path, keras.Model], Mapping[str, np.ndarray]]] = {
    "a BackupAndRestore directory": lambda path, model: keras_sources.weights_file(
        path / _WEIGHTS, model
    ),
    "a .weights.h5 file": keras_sources.weights_file,
    "a .keras file": keras_sources.model_file,
    "a TensorFlow checkpoint": tf_source.values,
    "an Orbax checkpoint": orbax_source.values,
    "a torch state_dict": torch_source.values,
}


def recognised(path: Path) -> ImportSource:
    """The source at a path.

    Raises:
        FileNotFoundError: There is nothing.
        NotSupportedError: It is in no format that can be imported.
    """
    if (path / _WEIGHTS).is_file():
        return _backup(path)
    if path.name.endswith(".weights.h5"):
        kind = "a .weights.h5 file"
    elif path.suffix == ".keras":
        kind = "a .keras file"
    elif path.suffix in (".pt", ".pth", ".bin"):
        kind = "a torch state_dict"
    elif tf_source.is_here(path):
        return ImportSource(path, "a TensorFlow checkpoint")
    elif path.is_dir() and orbax_source.tree(path) is not None:
        kind = "an Orbax checkpoint"
    else:
        kind = ""
    if not path.exists():
        raise FileNotFoundError(
            message(
                "There is nothing to import.",
                received=path,
                hint="Name what is there.",
            )
        )
    if not kind:
        raise NotSupportedError(
            "Unrecognised checkpoint format.",
            received=path,
            hint=(
                "Import a directory of BackupAndRestore, a TensorFlow checkpoint or an "
                "Orbax checkpoint; or a file .keras, .weights.h5, .pt or .pth."
            ),
        )
    return ImportSource(path, kind)


def _backup(path: Path) -> ImportSource:
    try:
        told = json.loads((path / _TRAINING).read_text(encoding="utf-8"))
        epoch, batch = int(told["epoch"]), int(told["batch"])
    except FileNotFoundError:
        return ImportSource(path, "a BackupAndRestore directory")
    except (ValueError, KeyError, TypeError) as error:
        raise NotSupportedError(
            f"{_TRAINING} does not tell where training was.",
            received=f"{path / _TRAINING}: {error!r}",
            hint=f"Import {path / _WEIGHTS}, and say the epoch.",
        ) from None
    return ImportSource(path, "a BackupAndRestore directory", epoch, batch)
