"""Kinds of data go on in mid-epoch with what another backend saved, or are refused."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from support.forking import environment

from resilient.backends import BACKENDS
from resilient.errors import DataNotResumableError, NotExactWarning
from resilient.storage.layout import committed_steps

pytestmark = [
    pytest.mark.sources,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
    # Workers are forked; JAX warns that it has threads.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

BACKEND = os.environ["KERAS_BACKEND"]
OTHERS = [each for each in BACKENDS if each != BACKEND]
EPOCH = 6
# Its classes are to be those that resume.
SAVE = "import sys; from another_backend.sources import main; main(sys.argv[1])"


def saved(backend: str, directory: Path) -> None:
    """Let a process of another backend train on each kind of data."""
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(directory)],
        cwd=Path(__file__).parents[1],
        env=environment() | {"KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("saver", OTHERS)
def test_the_epoch_ends_in_the_order_in_which_it_began(saver, tmp_path):
    """Unless it would be drawn again; and so it does when it is interrupted anew."""
    from . import sources

    saved(saver, tmp_path)
    for kind in sources.KINDS:
        run = tmp_path / kind
        assert committed_steps(run) == [sources.SAVED], kind
        expected = json.loads(Path(f"{run}.json").read_text())
        again = tmp_path / "again" / kind
        if kind in sources.REPLAYED:
            with pytest.raises(DataNotResumableError, match=f"drawn by {saver}"):
                sources.train(kind, run, allow={"backend"})
            continue
        with pytest.warns(NotExactWarning, match=f"checkpoint has '{saver}'") as told:
            found = sources.train(kind, run, again, allow={"backend"}, save_freq=1)
        assert len([each for each in told if each.category is NotExactWarning]) == 1
        assert found[: 2 * EPOCH] == expected[: 2 * EPOCH], kind
        assert sorted(chain(*found[2 * EPOCH :])) == list(range(sources.SAMPLES)), kind
        assert sources.SAVED < committed_steps(again)[-1] < 2 * EPOCH
        assert sources.train(kind, again, save_freq=1) == found, kind
