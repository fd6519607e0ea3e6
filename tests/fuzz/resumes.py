"""Whole runs that resume from a mutated ``run.json``: to the end, or to an error."""

import traceback
from collections.abc import Callable
from pathlib import Path

import keras
from kill.record import Record
from released.program import PROGRAMS
from released.write import SEED

import resilient

from .checkpoints import BACKEND, KINDS, lay_out, mutation, released, seal
from .target import Files, Target

_OURS = str(Path(resilient.__file__).parent)
_RELEASED = str(Path(__file__).parents[1] / "released")
_RUN = "run.json"


def targets() -> list[Target]:
    found = []
    for kind in KINDS:
        files = released(kind)
        mutate = mutation({_RUN: files[_RUN]}, json_share=1)
        name = f"{BACKEND} {kind} resumed"
        found.append(Target(name, files, mutate, _resume(kind), reading=False))
    return found


def _resume(kind: str) -> Callable[[Files], None]:
    def read(files: Files) -> None:
        seal(lay_out(files), files)
        keras.utils.set_random_seed(SEED + 1)
        restored: list[Record] = []
        try:
            PROGRAMS[kind](Path("run").absolute(), restored.append)
        except Exception as error:
            if not _is_of_others(error, restored=bool(restored)):
                raise

    return read


def _is_of_others(error: Exception, *, restored: bool) -> bool:
    """Whether a class of the script's, or a library later, could not use a value.

    It may be legal: which ones a callback can work with is its own business.
    """
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.filename.startswith(_RELEASED) or (
        restored and not last.filename.startswith(_OURS)
    )
