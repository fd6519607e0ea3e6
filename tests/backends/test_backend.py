"""One contract for the three adapters: exact bytes, true copies, nothing cast."""

import logging
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support.tensor_cases import (
    any_bytes,
    differing,
    difficult_floats,
    dtype,
    every_dtype_and_shape,
    live,
    same,
)

from resilient import backends
from resilient.backends import Backend, get_backend
from resilient.backends.arrays import DTYPES
from resilient.errors import (
    CheckpointMismatchError,
    NotSupportedError,
)

# What Keras can make variables of.
VARIABLE_DTYPES = sorted(DTYPES - {"complex64", "complex128"})
if os.environ["KERAS_BACKEND"] == "torch":
    VARIABLE_DTYPES.remove("uint64")


def arrays_of(adapter: Backend, tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    return dict(adapter.snapshot(tensors).arrays)  # type: ignore[attr-defined]


def through_disk(
    adapter: Backend, tensors: dict[str, Any], directory: Path
) -> dict[str, np.ndarray]:
    directory.mkdir(exist_ok=True)
    adapter.snapshot(tensors).write(str(directory))
    return backends.read(adapter.name, str(directory))


def variable(kind: str, shape: tuple[int, ...] = (3, 4)) -> keras.Variable:
    with warnings.catch_warnings():
        # JAX warns that it makes int32 of int64 while x64 is off.
        warnings.simplefilter("ignore")
        return keras.Variable(np.zeros(shape), dtype=kind, trainable=False)


def test_the_same_adapter_is_returned_each_time(adapter: Backend, backend: str) -> None:
    """Without a name it is the one of the backend that Keras runs on."""
    assert get_backend() is adapter
    assert adapter.name == backend
    assert backend in adapter.versions()


def test_arrays_of_every_dtype_and_shape_come_back_exactly(
    adapter: Backend, tmp_path: Path
) -> None:
    """0-d and zero-sized arrays, bfloat16 and float8, int64 without x64 included."""
    arrays = every_dtype_and_shape()
    assert differing(through_disk(adapter, arrays, tmp_path), arrays) == []


def test_live_tensors_come_back_exactly(adapter: Backend, tmp_path: Path) -> None:
    """Of every dtype the backend can make a tensor of."""
    arrays = every_dtype_and_shape()
    if adapter.name == "jax":  # x64 is off: JAX has no tensors of these.
        wide = ("int64", "uint64", "float64", "complex128")
        arrays = {k: v for k, v in arrays.items() if not k.startswith(wide)}
    tensors = {name: live(array) for name, array in arrays.items()}
    assert differing(through_disk(adapter, tensors, tmp_path), arrays) == []


def test_nan_payloads_and_negative_zeros_survive(
    adapter: Backend, tmp_path: Path
) -> None:
    """Through snapshot, disk and assignment, signalling NaNs included."""
    value = difficult_floats()
    target = variable("float32", value.shape)
    read = through_disk(adapter, {"x": value}, tmp_path)
    adapter.assign(target, read["x"])
    assert same(arrays_of(adapter, {"x": target})["x"], value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(5, dtype=">i4"),
        np.broadcast_to(np.float32(3), (2, 2)),
    ],
    ids=["transposed", "reversed", "fortran", "big-endian", "broadcast"],
)
def test_layout_in_memory_does_not_matter(
    adapter: Backend, tmp_path: Path, array: np.ndarray
) -> None:
    """Values and shape are kept; order and byte order become the usual ones."""
    read = through_disk(adapter, {"x": array}, tmp_path)["x"]
    assert read.flags.c_contiguous
    assert read.dtype.isnative
    assert read.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(read, array)


def test_a_snapshot_of_nothing_can_be_written_and_read(
    adapter: Backend, tmp_path: Path
) -> None:
    """A model without variables is odd, not an error."""
    assert through_disk(adapter, {}, tmp_path) == {}


def test_names_of_any_length_and_case_come_back(
    adapter: Backend, tmp_path: Path
) -> None:
    """Longer than a file name may be, with dots, differing in case alone."""
    names = ["x" * 300, "a..b", "a.Sb", "a", "A", "a.b", ".a", "-", "save", "_values"]
    arrays = {name: np.array([i]) for i, name in enumerate(names)}
    assert differing(through_disk(adapter, arrays, tmp_path), arrays) == []


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array([None, 1]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, np.longdouble),
        [1.0, 2.0],
        "text",
        None,
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_what_no_format_keeps_is_refused_by_name(adapter: Backend, value: Any) -> None:
    """Before anything is written."""
    with pytest.raises(NotSupportedError, match=r"(?s)'callbacks.1.x'.*Received: "):
        adapter.snapshot({"callbacks.1.x": value})


def test_sparse_and_text_tensors_are_refused(adapter: Backend) -> None:
    """Their bytes alone would not say what they are."""
    if adapter.name == "tensorflow":
        import tensorflow as tf

        values = [tf.constant("text"), tf.sparse.eye(2), tf.ragged.constant([[1]])]
    elif adapter.name == "jax":
        import jax
        from jax.experimental import sparse

        values = [jax.random.key(0), sparse.BCOO.fromdense(jax.numpy.eye(2))]
    else:
        import torch

        values = [torch.eye(2).to_sparse(), torch.empty(2, device="meta")]
    for value in values:
        with pytest.raises(NotSupportedError, match="'x'"):
            adapter.snapshot({"x": value})


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a:0", "a\n"])
def test_names_that_a_format_might_not_keep_are_refused(
    adapter: Backend, name: str
) -> None:
    with pytest.raises(NotSupportedError, match="characters"):
        adapter.snapshot({name: np.zeros(1)})


def test_only_finished_files_are_left(adapter: Backend, tmp_path: Path) -> None:
    """Nothing temporary, nothing absolute: the directory is renamed at the commit."""
    staging, committed = tmp_path / "staging.tmp", tmp_path / "committed"
    arrays = every_dtype_and_shape()
    through_disk(adapter, arrays, staging)
    files = {p.relative_to(staging) for p in staging.rglob("*") if p.is_file()}
    expected = {
        "tensorflow": {"state.index", "state.data-00000-of-00001"},
        "jax": {"state"},
        "torch": {"state.pt"},
    }[adapter.name]
    assert {file.parts[0] for file in files} == expected
    assert not [file for file in files if "tmp" in str(file) or "temp" in str(file)]
    staging.rename(committed)
    assert differing(backends.read(adapter.name, str(committed)), arrays) == []
    assert [p.name for p in tmp_path.iterdir()] == ["committed"]


def test_reading_what_is_not_there_is_an_error(
    adapter: Backend, tmp_path: Path
) -> None:
    """Never an empty result."""
    with pytest.raises(Exception, match="state"):
        backends.read(adapter.name, str(tmp_path))


def test_writing_and_reading_is_silent(
    adapter: Backend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No log record, no output, no warning; others' records still pass."""
    # TensorFlow notes a duration at the level of information: let it.
    level = logging.WARNING if adapter.name == "tensorflow" else logging.DEBUG
    with caplog.at_level(level), caplog.at_level(level, "absl"):
        filters = list(logging.getLogger("absl").filters)
        through_disk(adapter, every_dtype_and_shape(), tmp_path)
        assert logging.getLogger("absl").filters == filters
        logging.getLogger("absl").warning("from somebody else")
    records = [r for r in caplog.records if r.name != "asyncio"]
    assert [r.getMessage() for r in records] == ["from somebody else"]
    assert capfd.readouterr().out == ""


def test_a_relative_directory_will_do(
    adapter: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrays = {"x": np.arange(3)}
    assert differing(through_disk(adapter, arrays, Path("here")), arrays) == []


# The last is no text in any encoding that libraries expect: the byte 0xff.
NAMES = ["run[1]", "back\\slash", "a b*?{c}", "größe=1", os.fsdecode(b"run-\xff")]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_may_have_any_name(
    adapter: Backend, tmp_path: Path, name: str
) -> None:
    """And be given another one; nothing is taken for a pattern."""
    # Of other names each time: what is made once for a set of names is made here.
    arrays = {f"x.{number}.{len(name)}": np.arange(3) + number for number in range(2)}
    first, second = tmp_path / name, tmp_path / f"renamed {name}"
    assert differing(through_disk(adapter, arrays, first), arrays) == []
    first.rename(second)
    assert differing(backends.read(adapter.name, str(second)), arrays) == []


def test_snapshots_can_be_written_on_several_threads(
    adapter: Backend, tmp_path: Path
) -> None:
    """The writer's thread is not the one that trains."""
    arrays = [{"x": any_bytes("float32", (50, 50), seed)} for seed in range(4)]
    results: dict[int, dict[str, np.ndarray]] = {}

    def write(index: int) -> None:
        directory = tmp_path / str(index)
        results[index] = through_disk(adapter, arrays[index], directory)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [differing(results[i], arrays[i]) for i in range(4)] == [[]] * 4


@pytest.mark.parametrize("kind", VARIABLE_DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 3)], ids=str)
def test_a_keras_variable_takes_every_byte(
    adapter: Backend, kind: str, shape: tuple[int, ...]
) -> None:
    """In place, without a warning, and stays of the dtype that it was."""
    target = variable(kind, shape)
    raw = target.value
    # On torch uint32 lives as int64, on JAX without x64 int64 as int32.
    held = str(arrays_of(adapter, {"x": target})["x"].dtype)
    value = any_bytes(held, shape)
    adapter.assign(target, value)
    assert same(arrays_of(adapter, {"x": target})["x"], value)
    assert str(target.value.dtype) == str(raw.dtype)
    if adapter.name != "jax":
        assert target.value is raw


@pytest.mark.parametrize("trainable", [True, False])
def test_assignment_keeps_what_a_variable_is(adapter: Backend, trainable: bool) -> None:
    """Device, gradient, sharding: only the bytes change."""
    target = keras.Variable(np.zeros((2, 2)), dtype="float32", trainable=trainable)

    def properties() -> Any:
        value = target.value
        if adapter.name == "jax":
            return value.sharding, value.committed, value.weak_type
        if adapter.name == "torch":
            return value.device, value.requires_grad, value.is_leaf, value.grad
        return value.device, value.trainable

    before = properties()
    adapter.assign(target, np.ones((2, 2), np.float32))
    assert properties() == before
    assert target.trainable is trainable


def test_tensors_of_the_backend_itself_can_be_set(adapter: Backend) -> None:
    """Raw tf.Variables and torch buffers; a JAX array cannot be set in place."""
    value = any_bytes("float32", (3,))
    if adapter.name == "jax":
        with pytest.raises(NotSupportedError, match=r"keras\.Variable"):
            adapter.assign(live(np.zeros(3, np.float32)), value)
        return
    if adapter.name == "tensorflow":
        import tensorflow as tf

        target = tf.Variable(np.zeros(3, np.float32))
    else:
        import torch

        norm = torch.nn.BatchNorm1d(3)
        target = norm.running_mean
    adapter.assign(target, value)
    assert same(arrays_of(adapter, {"x": target})["x"], value)


def test_setting_a_variable_takes_a_copy(adapter: Backend) -> None:
    """Training does not write into the array, nor the array into the model."""
    target = variable("float32", (1000,))
    value = np.zeros(1000, np.float32)
    adapter.assign(target, value)
    target.assign_add(np.ones(1000, np.float32))
    assert not value.any()
    value[:] = 7
    assert (arrays_of(adapter, {"x": target})["x"] == 1).all()


def test_what_was_read_is_not_copied_again(adapter: Backend, tmp_path: Path) -> None:
    """A variable takes it over, where the backend can, and does not write to it."""
    before = np.arange(1 << 16, dtype=np.float32)
    read = through_disk(adapter, {"x": before}, tmp_path)["x"]
    target = variable("float32", before.shape)
    adapter.assign(target, read)
    if adapter.name == "tensorflow":
        shown = np.asarray(memoryview(target.value.read_value()))
        assert shown.ctypes.data == read.ctypes.data
    elif adapter.name == "jax":
        assert target.value.unsafe_buffer_pointer() == read.ctypes.data
    target.assign_add(np.ones(before.shape, np.float32))
    assert same(read, before)
    assert same(arrays_of(adapter, {"x": target})["x"], before + 1)


def test_a_read_only_array_can_be_set(adapter: Backend) -> None:
    """Memory maps and arrays over bytes are."""
    target = variable("bfloat16", (3,))
    value = np.frombuffer(any_bytes("bfloat16", (3,)).tobytes(), dtype("bfloat16"))
    adapter.assign(target, value)
    assert same(arrays_of(adapter, {"x": target})["x"], value.copy())


@pytest.mark.parametrize(
    "value",
    [
        np.ones((3, 1), np.float32),
        np.ones((), np.float32),
        np.ones((3, 4), np.float64),
        np.ones((3, 4), np.int32),
    ],
    ids=["other-shape", "would-broadcast", "wider", "other-kind"],
)
def test_nothing_is_cast_or_broadcast(adapter: Backend, value: np.ndarray) -> None:
    """What does not fit is refused, and the variable is as it was."""
    target = variable("float32", (3, 4))
    with pytest.raises(CheckpointMismatchError, match=r"(?s)shape \(3, 4\).*Received"):
        adapter.assign(target, value)
    assert not arrays_of(adapter, {"x": target})["x"].any()
