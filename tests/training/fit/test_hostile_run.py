"""What a stranger can write into ``run.json`` of a fit: an error that says so."""

import json
import shutil

import keras
import pytest
from support import fitting
from support.manifests import replace
from support.waited import each_save_waited_for

from resilient import CorruptCheckpointError
from resilient.storage.store import Store
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


BACKEND = keras.backend.backend()


@pytest.fixture(scope="module")
def left(tmp_path_factory, repeating):
    """What a run left that was interrupted in its second epoch."""
    directory = tmp_path_factory.mktemp("hostile") / "run"
    with each_save_waited_for():
        fitting.interrupted(directory)
    return directory


def drawn(name, state):
    return lambda run: {"random": run["random"] | {name: state}}


def in_a_callback(entry):
    def changed(run):
        first, *others = run["callbacks"]
        return {"callbacks": [first | {"objects": {"callbacks.0.x+": entry}}, *others]}

    return changed


def in_the_history(items):
    def changed(run):
        for callback in run["callbacks"]:
            for home, entry in callback.get("objects", {}).items():
                if home.endswith(".history"):
                    entry["items"] = items
        return {"callbacks": run["callbacks"]}

    return changed


ODD = {
    "no random state": {"random": {}},
    "a random state without backends": {"random": {"python": [], "numpy": {}}},
    "a setup of numbers": {"setup": {"changed": 3}},
    "a setup of a list": {"setup": {"changed": {}, "script": []}},
    "traces of numbers": {"traces": {"train_function": [3]}},
    "traces of no lists": {"traces": {"train_function": {}}},
    "a rate that is a text": {"learning_rates": "0.1"},
    "logs that are a list": {"epoch_logs": [1]},
    "a log without a name": {"epoch_logs": {"!": "dict", "v": [[7, 1.0]]}},
    "attributes that are a number": {"attributes": 3},
    "attributes without a tag": {"attributes": [1, {"a": 1}]},
    "losses of others": {"losses": {"a": 1}},
    "a generator of Python is a number": drawn("python", 5),
    "a generator of NumPy is empty": drawn("numpy", {}),
    "a seed that is huge": drawn("keras", [2**70, -1]),
    "a generator of the backend": drawn("backends", {BACKEND: 5}),
    "a history of numbers": in_the_history(3),
    "a history of no tag": in_the_history({"a": 1}),
    "a new object of nothing": in_a_callback({"made": ["nothing", None]}),
    "items that are a number": in_a_callback({"made": ["list", None], "items": 3}),
    "content of nothing": in_a_callback({"content": ["nothing", 3]}),
    "attributes that are a list": in_a_callback({"attributes": [1]}),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_malformed_run_is_damage_and_the_one_before_is_used(left, tmp_path, odd):
    """Found when it is read: when it is restored, something was changed already."""
    directory = tmp_path / "run"
    shutil.copytree(left, directory)
    *_, before, checkpoint = Store(directory).checkpoints()
    run = json.loads((checkpoint.path / "run.json").read_bytes())
    odd = odd(run) if callable(odd) else odd
    assert odd.keys() <= run.keys()
    replace(checkpoint.path, "run.json", json.dumps(run | odd).encode())
    with pytest.raises(CorruptCheckpointError):
        fitting.fit(fitting.model(), directory, resume=checkpoint.step)
    fitting.fit(fitting.model(), directory, callbacks=[fitting.Interrupt()])
    fell_back, restored = (
        next(e for e in read_events(directory) if e["event"] == event)
        for event in ("fell back", "restored")
    )
    assert fell_back["checkpoint"] == checkpoint.path.name
    assert restored["step"] == before.step
