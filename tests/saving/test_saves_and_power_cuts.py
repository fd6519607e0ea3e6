"""A power cut at any moment of a training: what its last save returned is there.

What ``support.power_cut`` shows of saving, with what each backend's library writes.
"""

import os

import numpy as np
import pytest
from support import fitting
from support.promises import Promise, cut_power, kept_in_mind, recovered
from support.recording import Recorder
from support.shared_files import share_files_of_small_tensors

import resilient
from resilient.backends import get_backend
from resilient.policies import latest
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Unchanged, commit
from resilient.storage.store import Store
from resilient.telemetry import heartbeat
from resilient.telemetry.events import read_events
from resilient.training import rollback

pytestmark = [
    pytest.mark.long,
    pytest.mark.waits,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

KILLS = int(os.environ.get("RESILIENT_KILLS", "1000"))
SHARES = range(5)  # of the power cuts: a share of a long session has one or none


@pytest.fixture
def events_and_saved(tmp_path, monkeypatch):
    """Of a training that is rolled back and resumed, and of a save of the same step."""
    share_files_of_small_tensors(monkeypatch.setattr)
    with Recorder(tmp_path) as recorder, kept_in_mind(recorder) as saved:
        write = rollback.replace_file

        def noted(path, content):
            recorder.mark("noting", content.decode())
            write(path, content)
            recorder.mark("noted", content.decode())

        monkeypatch.setattr(rollback, "replace_file", noted)
        x, y = fitting.data()
        y[17] = np.nan
        directory = tmp_path / "run"
        how = resilient.Rollback(steps=1, skip=2)
        options = {"save_freq": 1, "keep": 2, "on_nan": how, "shuffle": False}
        for epochs in (1, 2):
            net = fitting.model(of=partly_frozen)
            fitting.fit(net, directory, x=x, y=y, epochs=epochs, **options)
        assert (directory / "quarantine").is_dir()
        assert "link" in recorder.calls
        replace_newest(Store(directory))
    return recorder.events, saved


def partly_frozen():
    layers = fitting.layers(width=8)
    layers[1].trainable = False
    return layers


def tensors(state):
    return {name: np.asarray(tensor) for name, tensor in state.tensors.items()}


def save(store, progress, run, arrays):
    backend = get_backend()
    snapshot = Snapshot(run, NOWHERE, backend.snapshot(arrays), progress)
    commit(store, snapshot, backend.versions(), Unchanged())


def replace_newest(store):
    """Save its step once more, with other tensors."""
    backend = get_backend()
    checkpoint, state = store.load_newest(record.PartReader(backend))
    arrays = {name: np.flip(array).copy() for name, array in tensors(state).items()}
    save(store, checkpoint.progress, state.run, arrays)


def recover_and_save(directory, promise):
    """Every tensor is read, and saved once more."""
    backend = get_backend()
    store = recovered(directory, promise, record.PartReader(backend))
    found = store.load_newest(record.PartReader(backend))
    heartbeat.last_words(directory)
    rollback.read(directory)
    list(read_events(directory))
    if found is None:
        return
    checkpoint, state = found
    progress = Progress(checkpoint.step + 1, 0, checkpoint.step + 1)
    save(store, progress, state.run, tensors(state))
    store.prune(latest(1))
    again, read = store.load_newest(record.PartReader(backend))
    assert again.step == progress.step
    assert as_bytes(read) == as_bytes(state)


def as_bytes(state):
    return {name: array.tobytes() for name, array in tensors(state).items()}


@pytest.mark.parametrize("share", SHARES)
def test_nothing_is_lost(events_and_saved, share):
    events, saved = events_and_saved
    states = max(1, 5 * KILLS // len(SHARES))
    cut_power(events, Promise(saved), recover_and_save, states, seed=share)
