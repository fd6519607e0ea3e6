"""Write the checkpoints that are read on other backends: of the end of an epoch.

In ``tests/``, in an environment of each backend:

    PYTHONPATH=..:. KERAS_BACKEND=torch python -m another_backend.write

This writes ``checkpoints/BACKEND/``: a checkpoint, and ``end.npz``, what there was to
see then.
"""

import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np

from resilient.storage.layout import committed_name

from . import CHECKPOINTS
from .program import EPOCH, loop, train

STEP = committed_name(EPOCH)
LOOP = 3  # steps, of the loop


def main() -> None:
    home = CHECKPOINTS / keras.backend.backend()
    shutil.rmtree(home, ignore_errors=True)
    keras.utils.set_random_seed(7)
    with tempfile.TemporaryDirectory() as directory:
        end = train(Path(directory), 1)
        shutil.copytree(Path(directory, STEP), home / STEP)
    np.savez(home / "end.npz", **end)
    with tempfile.TemporaryDirectory() as directory:
        keras.utils.set_random_seed(7)
        end, _ = loop(Path(directory), LOOP)
        step = committed_name(LOOP)
        later = Path(directory, "later")
        keras.utils.set_random_seed(7)
        loop(later, LOOP + 2, pause=1.0)
        shutil.copytree(later / step, home / "loop" / step)
    np.savez(home / "loop" / "end.npz", **end)


if __name__ == "__main__":
    main()
