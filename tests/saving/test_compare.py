"""Two checkpoints, compared: tensor by tensor, and whatever else they hold."""

import math
import shutil
import sys
import tempfile

import ml_dtypes
import numpy as np
import pytest
from another_backend import CHECKPOINTS, need
from support.checkpoint_samples import commit as commit_files

from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.progress import Progress
from resilient.saving.compare.compare import Tensor, compare
from resilient.saving.compare.distance import Distance, distance
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.unchanged import Unchanged
from resilient.saving.writer import commit
from resilient.storage.store import Store

STEP = 9
MOST = sys.float_info.max


def saved(directory, tensors, step=STEP, paths=None):
    """The store of a checkpoint of these tensors, by name."""
    store = Store(directory)
    store.directory.mkdir(exist_ok=True)
    variables = [
        {
            "name": name,
            "path": (paths or {}).get(name, name.partition(".")[2]),
            "shape": list(array.shape),
            "dtype": str(array.dtype),
        }
        for name, array in tensors.items()
    ]
    run = VariablesRun(variables=variables, tensors=sorted(tensors))
    taken = get_backend().snapshot(tensors)
    snapshot = Snapshot(run, NOWHERE, taken, Progress(step, 0, step))
    commit(store, snapshot, get_backend().versions(), Unchanged())
    return store


def compared(tmp_path, a, b):
    """The leaves of two checkpoints of these tensors, by name."""
    stores = saved(tmp_path / "a", a), saved(tmp_path / "b", b)
    found = compare(stores[0], None, stores[1], STEP)
    return found, {leaf.name: leaf for leaf in found.leaves}


def floats(bits, dtype):
    return np.array(bits, f"u{np.dtype(dtype).itemsize}").view(dtype)


@pytest.mark.once
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], Distance()),
        ([1.0, 2.0], [1.0, 2.5], Distance(1, 1, 0, 0.5, 2**50)),
        ([0.0], [-0.0], Distance(1)),
        ([math.nan, 1.0], [1.0, math.nan], Distance(2, 2, 2)),
        ([math.inf], [-math.inf], Distance(1, 1, 0, math.inf, 2 * (2047 << 52))),
        ([5e-324], [-5e-324], Distance(1, 1, 0, 1e-323, 2)),
        ([MOST], [-MOST], Distance(1, 1, 0, math.inf, 2 * ((2047 << 52) - 1))),
        ([], [], Distance()),
    ],
)
def test_doubles(a, b, expected):
    found = distance(np.array(a, np.float64), np.array(b, np.float64))
    assert found == expected


@pytest.mark.once
@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)
def test_floats_next_to_one_another(dtype):
    size = np.dtype(dtype).itemsize
    one = np.array([1.0, 0.0, 2.0], dtype)
    bits = one.view(f"u{size}") + np.array([1, 1, 0], f"u{size}")
    other = bits.view(dtype)
    found = distance(one, other)
    assert (found.count, found.unlike, found.max_ulps) == (2, 2, 1)
    assert found.max_abs == float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.once
def test_nans_of_other_bits():
    quiet, other = floats([0x7FC00000], "f4"), floats([0xFFC00001], "f4")
    assert distance(quiet, other) == Distance(1)


@pytest.mark.once
@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        (np.array([2**63 - 1]), np.array([-(2**63)]), float(2**64)),
        (np.array([2**53]), np.array([2**53 + 1]), 1.0),
        (np.array([True]), np.array([False]), 1.0),
        (np.array([3], np.uint8), np.array([250], np.uint8), 247.0),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64), float(2**64)),
    ],
)
def test_integers(a, b, most):
    assert distance(a, b) == Distance(1, 1, 0, most)
    assert distance(b, a) == Distance(1, 1, 0, most)


@pytest.mark.once
def test_integers_of_two_types_are_compared_as_numbers():
    signed = np.array([-1, 5, 2**62])
    assert distance(signed, signed.astype(np.uint64)).count == 1
    assert distance(signed[1:], signed[1:].astype(np.uint64)).count == 0


@pytest.mark.once
def test_complex_numbers_text_and_what_lies_across_pieces(monkeypatch):
    monkeypatch.setattr("resilient.saving.compare.distance._PIECE", 3)
    numbers = np.arange(10, dtype=np.complex64)
    assert distance(numbers, numbers + 3j) == Distance(10, 10, 0, 3.0, 1077936128)
    text = np.array(["a", "b"])
    assert distance(text, np.array(["a", "c"])) == Distance(1, 1)
    across = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    other = across.copy()
    other[2, 3] += 1
    assert distance(across, other).count == 1
    assert distance(np.zeros(3, ">f4"), np.zeros(3, ">f4")) == Distance()
    found = distance(np.ones(3, ">f4"), np.nextafter(np.ones(3, "f4"), 2).astype(">f4"))
    assert found.max_ulps == 1


def test_tensors(tmp_path):
    a = {
        "trainable.0000.kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "trainable.0001.bias": np.zeros(3, np.float32),
        "optimizer.0000.rate": np.float32(0.5).reshape(()),
        "metrics.0000.total": np.ones(2, np.float32),
        "metrics.0001.gone": np.ones(2, np.float32),
    }
    b = {name: array.copy() for name, array in a.items()}
    b["trainable.0000.kernel"][1, 2] = np.nextafter(np.float32(5), np.float32(6))
    b["trainable.0001.bias"][1] = -0.0
    b["metrics.0000.total"] = np.ones(3, np.float32)
    del b["metrics.0001.gone"]
    b["loop.0000.new"] = np.ones(1, np.int32)
    found, leaves = compared(tmp_path, a, b)
    assert not found.equal
    assert [leaf.how for leaf in found.leaves] == [
        *("values", "bits", "equal", "shape", "only_a", "only_b")
    ]
    kernel = leaves["0000.kernel"]
    assert (kernel.group, kernel.size) == ("weights", 6)
    assert kernel.distance.max_ulps == kernel.distance.count == 1
    assert leaves["0001.bias"].distance == Distance(1)
    assert leaves["0000.total"].a == Tensor((2,), "float32")
    assert leaves["0000.total"].b == Tensor((3,), "float32")
    assert leaves["0000.new"].group == "variables"
    assert found.facts == ()


def test_the_same_but_for_automatic_names(tmp_path):
    array = np.ones((2, 2), np.float32)
    a = saved(
        tmp_path / "a",
        {"trainable.0000.dense.kernel": array},
        paths={"trainable.0000.dense.kernel": "dense/kernel"},
    )
    b = saved(
        tmp_path / "b",
        {"trainable.0000.dense_7.kernel": array},
        paths={"trainable.0000.dense_7.kernel": "dense_7/kernel"},
    )
    found = compare(a, None, b, None)
    assert found.equal
    assert [leaf.name for leaf in found.leaves] == ["dense/kernel"]


def test_another_step_is_another_state(tmp_path):
    tensors = {"trainable.0000.w": np.ones(1)}
    a = saved(tmp_path / "a", tensors)
    saved(tmp_path / "a", tensors, step=STEP + 1)
    found = compare(a, STEP, a, None)
    assert [(each.section, each.name) for each in found.facts] == [
        ("progress", "step"),
        ("progress", "batch"),
    ]
    assert not found.equal
    assert compare(a, STEP, a, STEP).equal


def saved_by_two(directory, second):
    """The store of a checkpoint of two processes, and what the second one had."""
    store, backend = Store(directory), get_backend()
    store.directory.mkdir()
    variables = [
        {
            "name": name,
            "path": name[len("metrics.0000.") :],
            "shape": [2],
            "dtype": "float32",
        }
        for name in ("metrics.0000.all", "metrics.0001.own")
    ]
    common, own = np.ones(2, np.float32), "metrics.0001.own.replica_"
    of_parts = [
        {"metrics.0000.all": common, f"{own}0": common},
        {f"{own}1": np.array(second, np.float32)},
    ]

    at = Progress(STEP, 0, STEP)

    def write(staging):
        for index, tensors in enumerate(of_parts):
            names = sorted(tensors)
            run = VariablesRun(variables=variables, tensors=names, replicas=2)
            part = Part(index, 2, 2, frozenset(n for n in names if n.startswith(own)))
            taken = backend.snapshot(tensors)
            with tempfile.TemporaryDirectory() as beside:
                snapshot = Snapshot(run, NOWHERE, taken, at, part)
                taken.write(snapshot.write_state(beside), part)
                shutil.copytree(beside, staging, dirs_exist_ok=True)

    commit_files(store, at, write, environment=backend.versions())
    return store


def test_two_processes(tmp_path):
    if get_backend().name == "torch":
        pytest.skip("its ranks write together: see test_hostile_torch.py")
    a = saved_by_two(tmp_path / "a", [1, 2])
    b = saved_by_two(tmp_path / "b", [1, 4])
    found = compare(a, None, b, None)
    assert [(leaf.name, leaf.how) for leaf in found.leaves] == [
        ("all", "equal"),
        ("own (replica 0)", "equal"),
        ("own (replica 1)", "values"),
    ]
    assert found.leaves[2].distance.max_abs == 2
    assert found.facts == ()


@pytest.mark.once
@pytest.mark.parametrize("kind", [".", "loop"])
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_checkpoint_equals_itself(backend, kind):
    need(backend)
    store = Store(CHECKPOINTS / backend / kind)
    found = compare(store, None, store, None)
    assert found.equal
    assert all(leaf.equal for leaf in found.leaves)
    assert (found.facts, found.left_out) == ((), ())
    assert "weights" in {leaf.group for leaf in found.leaves}


@pytest.mark.once
@pytest.mark.parametrize("kind", [".", "loop"])
@pytest.mark.parametrize("pair", [("torch", "jax"), ("jax", "tensorflow")])
def test_two_backends(monkeypatch, pair, kind):
    """Without Keras, as all tests that are marked so, and without JAX."""
    need(*pair)
    monkeypatch.setitem(sys.modules, "jax", None)
    stores = [Store(CHECKPOINTS / backend / kind) for backend in pair]
    found = compare(stores[0], None, stores[1], None)
    assert found.left_out
    assert not found.equal
    counters = [leaf for leaf in found.leaves if leaf.name.endswith("/iteration")]
    assert all(leaf.equal for leaf in counters)
    assert not any(leaf.how == "dtype" for leaf in found.leaves)
