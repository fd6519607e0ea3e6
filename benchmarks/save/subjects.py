"""Whoever saves: the one interface of ours and the peers, and who is there."""

import importlib
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import keras
from state import BACKEND

# Modules with a list KINDS, and the package that each needs beside the backend.
_EVERYWHERE = {
    "ours": "",
    "peers_keras": "",
    "peers_orbax_callback": "orbax-checkpoint",
    "peers_safetensors": "safetensors",
}
_MODULES = {
    "tensorflow": {"peers_tensorflow": ""},
    "jax": {"peers_jax": "orbax-checkpoint"},
    "torch": {"peers_torch": "", "peers_lightning": "lightning"},
}


class Subject(Protocol):
    """One way of saving, on one model and one directory.

    Attributes:
        name: For the tables.
        flushes: Whether it calls fsync by itself.
        background: Whether training goes on before `wait` returns.
        directory: Where it writes, and nobody else.
    """

    name: str
    flushes: bool
    background: bool
    directory: Path

    def __init__(self, model: keras.Model, directory: Path) -> None: ...

    def save(self) -> None:
        """What training waits for."""

    def wait(self) -> None:
        """Returns when all is written."""

    def restore(self) -> None:
        """Set the model's variables to what was saved last."""

    def tidy(self) -> None:
        """Delete what was saved before; not timed."""

    def close(self) -> None:
        """End threads, drop memory."""


Kind = type[Subject]


class Peer:
    """What most of the peers have in common: a new path for each save.

    Args:
        model: Whose state it is.
        directory: Exists.
    """

    name: str
    flushes = False
    background = False

    def __init__(self, model: keras.Model, directory: Path) -> None:
        self.model = model
        self.directory = directory
        self._saves = 0

    def new_path(self) -> str:
        """Where to save next."""
        self._saves += 1
        return self.path()

    def path(self) -> str:
        """Where the last save is."""
        return str(self.directory / f"save-{self._saves}")

    def wait(self) -> None:
        """Nothing is left to be done."""

    def tidy(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()

    def close(self) -> None:
        """Nothing is kept."""


def flush(directory: Path) -> None:
    """Flush all files to disk, for those that do not."""
    for root, _, files in os.walk(directory):
        for path in (*(os.path.join(root, file) for file in files), root):
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def available() -> tuple[list[Kind], list[str]]:
    """Kinds that can be made here, and a line for each module that cannot."""
    kinds: list[Kind] = []
    missing = []
    for name, package in (_EVERYWHERE | _MODULES[BACKEND]).items():
        try:
            module: Any = importlib.import_module(name)
        except ImportError as error:
            if not package:
                raise
            missing.append(f"{name}: needs {package} ({error})")
        else:
            kinds += module.KINDS
    return kinds, missing
