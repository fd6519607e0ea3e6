"""A training that is killed, and goes on in another layout of processes and devices."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from own_data import BACKEND, NO_PARTS, OWN_DATA
from support.gang import Ended, run

import resilient
from resilient import backends
from resilient.backends import get_backend

SCRIPT = Path(__file__).with_name("elastic_worker.py")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(NO_PARTS, reason="refused, see test_loops.py"),
]


def attempt(
    directory: Path, layout: tuple[int, int], data: str, *kill: str
) -> list[tuple[int, list[dict], str]]:
    """Exit status, lines of JSON, and all output of each process."""
    processes, devices = layout
    arguments = (directory, devices, data, *kill)
    done: Ended = run(SCRIPT, *arguments, world=processes, timeout=200)
    found = []
    for status, output in zip(done.statuses, done.outputs, strict=True):
        lines = [json.loads(x) for x in output.splitlines() if x.startswith("{")]
        found.append((status, lines, output))
    return found


def ended(done: list[tuple[int, list[dict], str]]) -> list[dict]:
    """What all processes of an attempt ended with."""
    for status, _, output in done:
        assert status == 0, output
    ends = [lines[-1]["end"] for _, lines, _ in done]
    return [{k: v for k, v in end.items() if k != "rank"} for end in ends]


# On JAX all processes can have one dataset where it is TensorFlow's.
NEEDS = pytest.mark.sources if BACKEND == "jax" else pytest.mark.timeout(600)

# Processes and devices in each, with as many replicas each time. Of more than two, JAX
# sums in another order between processes than in one: uninterrupted runs differ, too.
LAYOUTS = {
    "tensorflow": [
        [(1, 2), (2, 1), (1, 2)],
        pytest.param([(2, 1), (1, 2), (2, 1)], marks=pytest.mark.long),
    ],
    "jax": [
        [(1, 2), (2, 1), (1, 2)],
        pytest.param([(2, 2), (4, 1), (2, 2)], marks=pytest.mark.long),
    ],
    "torch": [pytest.param((), marks=pytest.mark.skip("a process has one device"))],
}


@NEEDS
@pytest.mark.parametrize("layouts", LAYOUTS[BACKEND], ids=str)
def test_as_many_replicas_end_as_if_nothing_had_happened(
    layouts: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Whichever processes they live in; killed in the middle of two epochs."""
    uninterrupted, second, third = layouts
    data = "tf.data" if BACKEND == "jax" else "arrays"
    (expected, *_) = ended(attempt(tmp_path / "reference", uninterrupted, data))
    place = tmp_path / "run"
    first = attempt(place, second, data, "0:9")
    assert first[0][0] == -signal.SIGKILL
    assert_exported(place, tmp_path)
    for end in ended(attempt(place, third, data)):
        assert end == expected


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere devices can be as many")
def test_another_number_of_ranks_begins_with_the_same_state(tmp_path: Path) -> None:
    """And trains the same batches in the same order; the rest is said.

    Before Keras 3.16 each rank is a replica; since then they have one model together.
    """
    place = tmp_path / "run"
    uninterrupted = batches(attempt(tmp_path / "reference", (1, 1), "arrays"))
    two = attempt(place, (2, 1), "arrays", "1:9")
    assert two[1][0] == -signal.SIGKILL
    assert_exported(place, tmp_path)
    one = attempt(place, (1, 1), "arrays", "0:7")
    assert one[0][0] == -signal.SIGKILL
    again = attempt(place, (2, 1), "arrays")
    ended(again)
    before: dict = {}
    for done in (two, one, again):
        trained = batches(done)
        assert trained == {at: uninterrupted[at] for at in trained}
        told = weights(done)
        first = min(told)
        if before:  # what it begins with is what the others had there
            assert told[first] == before[first]
            assert "NotExactWarning: Not bit-exact: these settings" in done[0][2]
            spread = "a mesh of 2 devices" if OWN_DATA else "2 replicas"
            assert "devices: the checkpoint has" in done[0][2]
            assert spread in done[0][2]
        before = told
    assert max(batches(again)) == (2, 5)


def assert_exported(place: Path, tmp_path: Path) -> None:
    """Whole, from the parts of all processes; what they have in common as it is."""
    from safetensors import safe_open

    target = resilient.export(place, tmp_path / "exported.safetensors")
    newest = max(path for path in place.glob("step-*") if "." not in path.name)
    listed = json.loads((newest / "run.json").read_text())["variables"]
    tensors = backends.read(get_backend().name, str(newest / "variables"))
    common = [v for v in listed if v["name"] in tensors]
    assert {v["name"].partition(".")[0] for v in common} >= {"trainable", "optimizer"}
    with safe_open(target, "np") as file:
        assert set(file.keys()) == {v["path"] for v in listed}
        for variable in common:
            saved = np.asarray(tensors[variable["name"]])
            found = file.get_tensor(variable["path"])
            assert (saved.dtype, saved.tobytes()) == (found.dtype, found.tobytes())


def batches(done: list[tuple[int, list[dict], str]]) -> dict[tuple[int, int], list]:
    """Epoch and batch -> the rows that all processes trained then, in order."""
    found: dict[tuple[int, int], list] = {}
    for _, lines, _ in done:
        at = None
        for line in lines:
            at = tuple(line["batch"]) if "batch" in line else at
            if "rows" in line:
                found.setdefault(at, []).extend(line["rows"])
    whole = {at: rows for at, rows in found.items() if len(rows) == 8}
    assert len(whole) >= len(found) - 1  # of the last one some may have died before
    return whole


def weights(done: list[tuple[int, list[dict], str]]) -> dict[tuple[int, int], str]:
    """Epoch and batch -> the weights before it, the same in all processes."""
    found: dict[tuple[int, int], set[str]] = {}
    for _, lines, _ in done:
        for line in lines:
            if "batch" in line:
                found.setdefault(tuple(line["batch"]), set()).add(line["weights"])
    assert all(len(each) == 1 for each in found.values())
    return {at: each.pop() for at, each in found.items()}
