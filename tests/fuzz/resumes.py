"""Whole runs that resume from a mutated ``run.json``: to the end, or to an error."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import keras
from another_backend import program

from .checkpoints import BACKEND, KINDS, lay_out, mutation, seal, stored
from .target import Files, Target

_PROGRAMS: dict[str, Callable[[Path], object]] = {
    "fit": lambda run: program.train(run, 2),
    "loop": lambda run: program.loop(run, 5),
}
_RUN = "run.json"


def targets() -> list[Target]:
    found = []
    for kind in KINDS:
        files = stored(kind)
        mutate = mutation({_RUN: files[_RUN]})
        name = f"{BACKEND} {kind} resumed"
        found.append(Target(name, files, mutate, _resume(kind), reading=False))
    return found


def _resume(kind: str) -> Callable[[Files], None]:
    def read(files: Files) -> None:
        seal(lay_out(files, kind), files)
        keras.utils.set_random_seed(8)
        with contextlib.suppress(Exception):  # of any class: the checksums were right
            _PROGRAMS[kind](Path("run").absolute())

    return read
