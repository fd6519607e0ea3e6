"""What a stranger can write into ``run.json`` of a fit: an error that says so."""

import json
import shutil

import pytest
from support import fitting
from support.manifests import replace
from support.waited import each_save_waited_for

from resilient import CorruptCheckpointError
from resilient.storage.store import Store

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


@pytest.fixture(scope="module")
def left(tmp_path_factory, repeating):
    """What a run left that was interrupted in its second epoch."""
    directory = tmp_path_factory.mktemp("hostile") / "run"
    with each_save_waited_for():
        fitting.interrupted(directory)
    return directory


ODD = {
    "no random state": {"random": {}},
    "a random state without backends": {"random": {"python": [], "numpy": {}}},
    "a setup of numbers": {"setup": {"now": 3}},
    "a setup of a list": {"setup": {"then": {}, "now": {}, "script": []}},
    "traces of numbers": {"traces": {"train_function": [3]}},
    "traces of no lists": {"traces": {"train_function": {}}},
    "a rate that is a text": {"learning_rate": "0.1"},
    "logs that are a list": {"epoch_logs": [1]},
    "attributes that are a number": {"attributes": 3},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_malformed_run(left, tmp_path, odd):
    directory = tmp_path / "run"
    shutil.copytree(left, directory)
    (*_, checkpoint) = Store(directory).checkpoints()
    run = json.loads((checkpoint.path / "run.json").read_bytes())
    assert odd.keys() <= run.keys()
    replace(checkpoint.path, "run.json", json.dumps(run | odd).encode())
    with pytest.raises(CorruptCheckpointError):
        fitting.fit(
            fitting.model(),
            directory,
            resume=checkpoint.step,
            callbacks=[fitting.Interrupt()],
        )
