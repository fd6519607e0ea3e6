"""Whole runs that resume from a mutated ``run.json``: to the end, or to an error."""

import traceback
from collections.abc import Callable
from pathlib import Path

import keras
from another_backend import program

import resilient
from resilient.telemetry.events import read_events

from .checkpoints import BACKEND, KINDS, lay_out, mutation, seal, stored
from .target import Files, Target

_OURS = str(Path(resilient.__file__).parent)
_PROGRAM = str(Path(program.__file__).parent)
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
        try:
            _PROGRAMS[kind](Path("run").absolute())
        except Exception as error:
            restored = any(e["event"] == "restored" for e in read_events("run"))
            if not _is_of_others(error, restored=restored):
                raise

    return read


def _is_of_others(error: Exception, *, restored: bool) -> bool:
    """Whether a class of the script's, or a library later, could not use a value.

    It may be legal: which ones a callback can work with is its own business.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.filename.startswith(_PROGRAM) or (
        restored and not last.filename.startswith(_OURS)
    )
