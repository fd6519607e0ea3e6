"""Write the checkpoints of a schema, with the release that has it.

Once, before the first release with a new ``SCHEMA`` (in ``storage/manifest.py``); for a
program that is new here also with the releases before, each checked out beside this
repository. In ``tests/``, in an environment of each backend:

    PYTHONPATH=PATH_OF_THAT_RELEASE:. KERAS_BACKEND=torch python -m released.write

This adds ``schema-N/BACKEND/PROGRAM/``: ``step-00000009``, what there was to see when
it was saved (``saved.record``), and how the run ended that was not interrupted
(``ended.record``). What is there already stays as it is, for ever.
"""

import shutil
import tempfile
from pathlib import Path

import keras
from kill.record import Record, save

from resilient.storage.layout import committed_name
from resilient.storage.manifest import SCHEMA

from .program import PROGRAMS, STEP, Program

HERE = Path(__file__).parent
SEED = 7  # of the runs that were written; others resume them


def main() -> None:
    step = committed_name(STEP)
    for name, program in PROGRAMS.items():
        home = HERE / f"schema-{SCHEMA}" / keras.backend.backend() / name
        if home.exists():
            continue
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory, "run")
            saved, ended = trained(program, run, SEED)
            shutil.copytree(run / step, home / step)
        save(saved, home / "saved.record")
        save(ended, home / "ended.record")


def trained(program: Program, directory: Path, seed: int) -> tuple[Record, Record]:
    """What there is to see at ``STEP``, if it resumes after the restore; in the end."""
    keras.utils.set_random_seed(seed)
    seen: list[Record] = []
    ended = program(directory, seen.append)
    (saved,) = seen
    return saved, ended


if __name__ == "__main__":
    main()
