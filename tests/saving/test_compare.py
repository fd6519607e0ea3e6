"""Two checkpoints, compared: tensor by tensor, and whatever else they hold."""

import math
import os
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
from resilient.saving.compare import compare, differing
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, VARIABLES, Snapshot
from resilient.saving.writer import Unchanged, commit
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
    run = VariablesRun(variables=variables)
    taken = get_backend().snapshot(tensors)
    snapshot = Snapshot(run, NOWHERE, taken, Progress(step, 0, step))
    commit(store, snapshot, get_backend().versions(), Unchanged())
    return store


def compared(tmp_path, a, b):
    """The comparison of two checkpoints of these tensors, and what differs, by name."""
    stores = saved(tmp_path / "a", a), saved(tmp_path / "b", b)
    found = compare(stores[0], None, stores[1], STEP)
    return found, {each.name: each for each in found.differences}


def places(found):
    """Where two checkpoints differ."""
    return [(each.section, each.name) for each in found.differences]


def floats(bits, dtype):
    return np.array(bits, f"u{np.dtype(dtype).itemsize}").view(dtype)


@pytest.mark.once
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], (0, 0.0)),
        ([1.0, 2.0, 3.0], [1.0, 2.5, 3.25], (2, 0.5)),
        ([0.0], [-0.0], (1, 0.0)),
        ([math.nan, 1.0], [1.0, math.nan], (2, math.nan)),
        ([math.inf], [-math.inf], (1, math.inf)),
        ([5e-324], [-5e-324], (1, 1e-323)),
        ([MOST], [-MOST], (1, math.inf)),
        ([], [], (0, 0.0)),
    ],
)
def test_doubles(a, b, expected):
    found = differing(np.array(a, np.float64), np.array(b, np.float64))
    assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@pytest.mark.once
@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn],
)
def test_floats_next_to_one_another(dtype):
    size = np.dtype(dtype).itemsize
    one = np.array([1.0, 0.0, 2.0], dtype)
    bits = one.view(f"u{size}") + np.array([1, 1, 0], f"u{size}")
    found = differing(one, bits.view(dtype))
    assert found == (2, float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.once
def test_nans_of_other_bits():
    quiet, other = floats([0x7FC00000], "f4"), floats([0xFFC00001], "f4")
    count, largest = differing(quiet, other)
    assert count == 1
    assert math.isnan(largest)


@pytest.mark.once
@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        (np.array([2**63 - 1]), np.array([-(2**63)]), float(2**64)),
        (np.array([2**52]), np.array([2**52 + 1]), 1.0),
        (np.array([True]), np.array([False]), 1.0),
        (np.array([3], np.uint8), np.array([250], np.uint8), 247.0),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64), float(2**64)),
    ],
)
def test_integers(a, b, most):
    assert differing(a, b) == differing(b, a) == (1, most)


@pytest.mark.once
def test_complex_numbers_text_and_what_lies_across_pieces(monkeypatch):
    monkeypatch.setattr("resilient.saving.compare.PIECE", 3)
    numbers = np.arange(10, dtype=np.complex64)
    assert differing(numbers, numbers + 3j) == (10, 3.0)
    count, largest = differing(np.array(["a", "b"]), np.array(["a", "c"]))
    assert count == 1
    assert math.isnan(largest)
    assert differing(np.zeros(2, "S0"), np.zeros(2, "S0"))[0] == 0
    across = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    other = across.copy()
    other[2, 3] += 1
    assert differing(across, other) == (1, 1.0)
    assert differing(np.zeros(3, ">f4"), np.zeros(3, ">f4")) == (0, 0.0)
    assert differing(np.ones(3, ">f4"), np.full(3, 1.5, ">f4")) == (3, 0.5)


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
    b["optimizer.0000.rate"] = b["optimizer.0000.rate"].astype(np.float64)
    found, differences = compared(tmp_path, a, b)
    assert not found.equal
    assert {name: (each.count, each.size) for name, each in differences.items()} == {
        "0000.kernel": (1, 6),
        "0001.bias": (1, 3),
        "0000.rate": (None, None),
        "0000.total": (None, None),
        "0001.gone": (None, None),
        "0000.new": (None, None),
    }
    kernel, rate = differences["0000.kernel"], differences["0000.rate"]
    assert kernel.section == "trainable"
    assert kernel.largest == np.spacing(np.float32(5))
    assert differences["0001.bias"].largest == 0
    assert (rate.a, rate.b) == ("() float32", "() float64")
    total, gone = differences["0000.total"], differences["0001.gone"]
    assert (total.a, total.b) == ("(2) float32", "(3) float32")
    assert (gone.a, gone.b) == ("(2) float32", None)
    assert (differences["0000.new"].section, differences["0000.new"].a) == (
        *("loop", None),
    )


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
    assert (found.tensors, found.differences) == (1, ())


def test_other_models_by_their_names(tmp_path):
    """Where one has a layer more, the others are compared with their counterparts."""

    def model(directory, *layers):
        names = [f"trainable.{n:04d}.{layer}" for n, layer in enumerate(layers)]
        array = np.ones((2, 2), np.float32)
        tensors = {name: array * len(name) for name in names}
        paths = dict(zip(names, layers, strict=True))
        return saved(tmp_path / directory, tensors, paths=paths)

    a = model("a", "conv", "dense_3", "dense_4")
    b = model("b", "conv", "norm", "dense", "dense_1")
    found = compare(a, None, b, None)
    assert {each.name: (each.a, each.b) for each in found.differences} == {
        "norm": (None, "(2, 2) float32"),
        "dense_3": ("(2, 2) float32", "(2, 2) float32"),
    }


def test_another_step_is_another_state(tmp_path):
    tensors = {"trainable.0000.w": np.ones(1)}
    a = saved(tmp_path / "a", tensors)
    saved(tmp_path / "a", tensors, step=STEP + 1)
    found = compare(a, STEP, a, None)
    assert places(found) == [("progress", "step"), ("progress", "batch")]
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
            run = VariablesRun(variables=variables, replicas=2)
            part = Part(index, 2, 2, frozenset(n for n in names if n.startswith(own)))
            taken = backend.snapshot(tensors)
            with tempfile.TemporaryDirectory() as beside:
                snapshot = Snapshot(run, NOWHERE, taken, at, part)
                snapshot.write_state(beside)
                taken.write(os.path.join(beside, VARIABLES), part)
                shutil.copytree(beside, staging, dirs_exist_ok=True)

    commit_files(store, at, write, environment=backend.versions())
    return store


def test_two_processes(tmp_path):
    if get_backend().name == "torch":
        pytest.skip("its ranks write together: see test_hostile_torch.py")
    a = saved_by_two(tmp_path / "a", [1, 2])
    b = saved_by_two(tmp_path / "b", [1, 4])
    found = compare(a, None, b, None)
    assert places(found) == [("metrics", "own.replica_1")]
    assert found.differences[0].largest == 2
    assert found.tensors == 3


@pytest.mark.once
@pytest.mark.parametrize("kind", [".", "loop"])
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_checkpoint_equals_itself(backend, kind):
    need(backend)
    store = Store(CHECKPOINTS / backend / kind)
    found = compare(store, None, store, None)
    assert found.equal
    assert found.differences == ()
    assert found.tensors > 20


@pytest.mark.once
@pytest.mark.parametrize("kind", [".", "loop"])
@pytest.mark.parametrize("pair", [("torch", "jax"), ("jax", "tensorflow")])
def test_two_backends(monkeypatch, pair, kind):
    """Without Keras, as all tests that are marked so, and without JAX."""
    need(*pair)
    monkeypatch.setitem(sys.modules, "jax", None)
    stores = [Store(CHECKPOINTS / backend / kind) for backend in pair]
    found = compare(stores[0], None, stores[1], None)
    assert not found.equal
    kernels = [each for each in found.differences if each.name.endswith("/kernel")]
    assert kernels
    assert all(0 < each.largest < 10 for each in kernels)
