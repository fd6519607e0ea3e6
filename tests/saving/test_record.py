"""A checkpoint whose checksums are right may still hold anything: that is damage."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import manifests

from resilient.errors import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.progress import Progress
from resilient.saving import snapshot
from resilient.saving.choose import choose_together
from resilient.saving.record import PartReader, SavedState
from resilient.saving.run_json import ImportRun, VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Unchanged, commit
from resilient.serialization.json_values import encode
from resilient.serialization.position import DataPosition, Positions, TrainingPosition
from resilient.serialization.schema import to_json
from resilient.storage.store import Store
from resilient.telemetry.events import Events

pytestmark = pytest.mark.once

VARIABLE = {"name": "loop.0", "path": "kernel", "shape": [2], "dtype": "float32"}
RUN = VariablesRun(variables=[VARIABLE], arrays=["a"])
DATA = "data/process-0-of-1.json"


class Tensors:
    """A backend and a snapshot, of two tensors."""

    name = "torch"

    def __init__(self):
        self.arrays = {}

    def write(self, directory, part, *, below):
        import torch

        tensors = {name: torch.zeros(2) for name in ("loop.0", "a")}
        torch.save(tensors, Path(directory, below, "state.pt"))
        return [f"{below}/state.pt"]


BACKEND = Tensors()


def save(store, step, run=RUN, **environment):
    taken = Snapshot(run, NOWHERE, BACKEND, Progress(step, 0, step))
    commit(store, taken, environment or {"torch": "2.9"}, Unchanged())
    return store.directory / f"step-{step:08d}"


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for step in (10, 20):
        save(store, step)
    return store


def newest(store):
    return store.load_newest(PartReader(BACKEND))


def test_a_checkpoint_is_read(store):
    checkpoint, saved = newest(store)
    assert checkpoint.step == 20
    assert saved.run == RUN
    assert sorted(saved.tensors) == ["a", "loop.0"]
    assert saved.positions() == Positions()


def run_json(**other):
    said = {
        "kind": "variables",
        "variables": [VARIABLE],
        "replicas": 1,
        "arrays": ["a"],
    }
    return json.dumps(said | other).encode()


CONTENTS = {
    "run.json": {
        "missing": None,
        "empty": b"",
        "no JSON": b"{",
        "no object": b"[]",
        "no UTF-8": b'{"kind": "\xff"}',
        "NaN": run_json().replace(b"1", b"NaN"),
        "nested deep": b"[" * 100_000,
        "a long number": run_json().replace(b"1", b"1" * 5000),
        "another kind": run_json(kind="other"),
        "replicas are a float": run_json(replicas=1.5),
        "a name is a number": run_json(arrays=[1]),
        "variables are an object": run_json(variables={}),
        "a variable is text": run_json(variables=["loop.0"]),
        "an array is missing": run_json(arrays=["b"]),
        "a field is missing": run_json(kind="loop"),
    },
    DATA: {"missing": None, "empty": b"", "nested deep": b"[" * 100_000, "NaN": b"NaN"},
    "data/process-1-of-1.json": {"too many": b"{}"},
    "data/process-7-of-9.json": {"a gap": b"{}"},
    "data/process-x": {"no number": b"{}"},
}
MALFORMED = {
    f"{name}, {what}": (name, content)
    for name, contents in CONTENTS.items()
    for what, content in contents.items()
}


@pytest.mark.parametrize(("name", "content"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_damage_and_the_one_before_is_used(store, name, content):
    path = store.directory / "step-00000020"
    manifests.replace(path, name, content)
    assert store.problems(20) == []
    with pytest.raises(CorruptCheckpointError, match="step 20 is damaged"):
        store.load(20, PartReader(BACKEND))
    reports = []
    checkpoint, _ = store.load_newest(PartReader(BACKEND), lambda *x: reports.append(x))
    assert checkpoint.step == 10
    ((_, reason),) = reports
    assert "\n" not in reason
    assert len(reason) < 3000
    assert (store.directory / "quarantine" / "step-00000020-1").is_dir()


def test_a_file_that_the_manifest_does_not_list_is_not_opened(store, monkeypatch):
    path = store.directory / "step-00000020"
    raw = (path / DATA).read_bytes()
    manifests.replace(path, DATA, None)
    (path / DATA).write_bytes(raw)
    assert newest(store)[0].step == 10


def test_a_file_that_became_a_link_after_it_was_verified_is_not_followed(store):
    path = store.directory / "step-00000020" / "run.json"
    path.rename(store.directory / "elsewhere")
    path.symlink_to(store.directory / "elsewhere")
    with pytest.raises(CorruptCheckpointError, match="symbolic link"):
        PartReader(BACKEND)(store.checkpoints()[-1])


def test_where_none_is_readable_the_error_says_why(tmp_path):
    store = Store(tmp_path)
    manifests.replace(save(store, 10), "run.json", b"[]")
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError, match=r"kind is None, not one of"):
            newest(store)


@pytest.mark.parametrize(
    "position",
    [
        None,
        3,
        [],
        {"!": "object", "v": ["builtins:object"]},
        {"!": "dict", "v": 3},
        {"!": "dict", "v": [[[], 1]]},
        {"!": "array", "v": "not there"},
        {"!": "int", "v": "z"},
        {"!": "float", "v": "00"},
        {"!": ["unhashable"]},
        {"!": "no tag", "v": 1},
    ],
    ids=str,
)
def test_a_malformed_position_is_an_error_that_says_so(position):
    with pytest.raises(CorruptCheckpointError):
        SavedState(RUN, position, {}).positions()


@pytest.mark.parametrize(
    "change",
    [{"drawn": -1}, {"epochs": -1}, {"given": -1}, {"drawn": 10**30}, {"drawn": True}],
    ids=str,
)
def test_a_position_counts_from_0(change):
    position = DataPosition(drawn=3, source={})
    x = TrainingPosition(held=False, drawn_by_all=True, data=position)
    good = SavedState(RUN, encode(to_json(Positions(x=x)), {}, "data"), {})
    assert good.positions().x == x
    bad = Positions(x=replace(x, data=replace(position, **change)))
    with pytest.raises(CorruptCheckpointError, match=r"\$\.x\.data"):
        SavedState(RUN, encode(to_json(bad), {}, "data"), {}).positions()


def test_what_could_not_be_read_back_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "JSON_BYTES", 2000)
    run = ImportRun(source="x" * 2000, unknown=[])
    with pytest.raises(NotSupportedError, match=r"run\.json could not be") as caught:
        save(Store(tmp_path), 10, run)
    assert "2,108 bytes; the limit is 2,000" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Two:
    """Process 0 of two."""

    count, index, said = 2, 0, ()

    def broadcast(self, _, step=None):
        self.said += (step,)


def test_several_processes_use_the_one_before_together(store, tmp_path):
    manifests.replace(store.directory / "step-00000020", "run.json", b"{}")
    group, reader = Two(), PartReader(BACKEND)
    found = choose_together(group, store, "auto", reader, Events(tmp_path))
    assert found[0].step == 10
    assert group.said == (10,)


def test_a_checkpoint_of_another_backend_is_no_damage(store):
    """Who forgets ``KERAS_BACKEND`` loses nothing."""
    before = save(store, 30, jax="0.10", jaxlib="0.10")
    with pytest.raises(CheckpointMismatchError, match="KERAS_BACKEND=jax"):
        newest(store)
    assert before.is_dir()
    assert not (store.directory / "quarantine").exists()
