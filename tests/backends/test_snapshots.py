"""Training does not change a snapshot, nor a snapshot the training."""

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support.gang import run_alone
from support.tensor_cases import differing, live, same

from resilient import backends
from resilient.backends import Backend
from resilient.state import rng as random_state

# Keras 3.12 on NumPy 2 (train_on_batch).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")

BATCHES = 8


def model_with_everything(jit_compile: bool, run_eagerly: bool) -> keras.Model:
    """Sparse updates, slots, moving statistics, seeds and counters."""
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(50, 8)(inputs)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(16)(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.5, seed=3)(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True),
        "mse",
        metrics=["mae"],
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(50, size=(4 * BATCHES, 4)).astype("int32")
    return x, x.sum(-1, keepdims=True).astype("float32")


def variables_of(model: keras.Model) -> dict[str, Any]:
    every = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return {f"v.{i}": each for i, each in enumerate(every)}


class SnapshotTaker(keras.callbacks.Callback):
    """Takes a snapshot after each batch, and a copy that is beyond doubt."""

    def __init__(self, adapter: Backend) -> None:
        super().__init__()
        self.adapter = adapter
        self.taken: list[Any] = []
        self.copies: list[dict[str, np.ndarray]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        tensors = variables_of(self.model)
        snapshot = self.adapter.snapshot(tensors)
        self.taken.append(snapshot)
        self.copies.append(
            {
                name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
                for name, array in snapshot.arrays.items()
            }
        )


MODES = [(False, False), (True, False), (False, True)]
MODE_NAMES = ["graph", "jit", "eager"]


@pytest.mark.parametrize(("jit", "eager"), MODES, ids=MODE_NAMES)
def test_training_does_not_write_into_a_snapshot(
    adapter: Backend, tmp_path: Path, jit: bool, eager: bool
) -> None:
    """Neither in place, nor by donating buffers; checked after all steps were taken."""
    if jit and adapter.name == "torch":
        pytest.skip("torch.compile needs a compiler; the copy does not depend on it")
    keras.utils.set_random_seed(1)
    model = model_with_everything(jit, eager)
    snapshots = SnapshotTaker(adapter)
    model.fit(*data(), batch_size=4, epochs=2, verbose=0, callbacks=[snapshots])
    assert len(snapshots.taken) == 2 * BATCHES
    for taken, copy in zip(snapshots.taken, snapshots.copies, strict=True):
        assert differing(dict(taken.arrays), copy) == []
    # Every step changed something, so an alias would have shown.
    changed = [
        not same(after["v.0"], before["v.0"])
        for before, after in zip(
            snapshots.copies[:-1], snapshots.copies[1:], strict=True
        )
    ]
    assert all(changed)
    # The middle one is written only now, long after training went on.
    snapshots.taken[BATCHES].write(str(tmp_path))
    assert (
        differing(backends.read(adapter.name, str(tmp_path)), snapshots.copies[BATCHES])
        == []
    )


def test_an_update_in_place_or_a_donation_leaves_the_snapshot(
    adapter: Backend,
) -> None:
    """The barest form: one tensor, one step that may reuse its memory."""
    before = np.arange(1 << 16, dtype=np.float32)
    tensor = live(before)
    if adapter.name == "jax":
        import jax

        snapshot = adapter.snapshot({"x": tensor})
        step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
        for _ in range(3):
            tensor = step(tensor).block_until_ready()
    elif adapter.name == "tensorflow":
        import tensorflow as tf

        variable = tf.Variable(tensor)
        snapshot = adapter.snapshot({"x": variable})
        variable.assign_add(tf.ones_like(variable))
        variable.scatter_nd_update([[0]], [9.0])
        tf.function(lambda: variable.assign(-variable), jit_compile=True)()
    else:
        snapshot = adapter.snapshot({"x": tensor})
        tensor.mul_(2).add_(1)
    assert same(snapshot.arrays["x"], before)


def test_a_view_is_stored_without_what_it_is_a_view_of(
    adapter: Backend, tmp_path: Path
) -> None:
    """A small slice of a large tensor makes a small checkpoint."""
    tensor = live(np.arange(1 << 18, dtype=np.float32))[3:7]
    snapshot = adapter.snapshot({"x": tensor})
    snapshot.write(str(tmp_path))
    written = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    assert written < 20_000
    assert same(
        backends.read(adapter.name, str(tmp_path))["x"],
        np.arange(3, 7, dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("jit", "eager"),
    [MODES[0], pytest.param(*MODES[1], marks=pytest.mark.long)],
    ids=MODE_NAMES[:2],
)
def test_training_is_the_same_with_and_without_snapshots(
    adapter: Backend, tmp_path: Path, jit: bool, eager: bool
) -> None:
    """Taking them, capturing random state, writing beside: not one bit changes."""
    if jit and adapter.name == "torch":
        pytest.skip("torch.compile needs a compiler; the copy does not depend on it")
    writers: list[threading.Thread] = []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            directory = tmp_path / str(len(writers))
            directory.mkdir()
            snapshot = adapter.snapshot(variables_of(self.model))
            random_state.capture(adapter)
            writer = threading.Thread(target=snapshot.write, args=(str(directory),))
            writer.start()
            writers.append(writer)

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    ends = []
    for callback in (Watch(), Save()):
        keras.utils.set_random_seed(1)
        model = model_with_everything(jit, eager)
        history = model.fit(*data(), batch_size=4, verbose=0, callbacks=[callback])
        ends.append((history.history, adapter.snapshot(variables_of(model)).arrays))
    for writer in writers:
        writer.join()
    assert len(writers) == BATCHES
    assert ends[0][0] == ends[1][0]
    assert differing(dict(ends[0][1]), dict(ends[1][1])) == []


@pytest.mark.parametrize(("jit", "eager"), MODES[:2], ids=MODE_NAMES[:2])
def test_training_goes_on_from_restored_variables_bit_for_bit(
    adapter: Backend, tmp_path: Path, jit: bool, eager: bool
) -> None:
    """Back through the disk into the compiled model, then the same batches again."""
    if jit and adapter.name == "torch":
        pytest.skip("torch.compile needs a compiler; assignment does not depend on it")
    keras.utils.set_random_seed(1)
    model = model_with_everything(jit, eager)
    x, y = data()
    model.train_on_batch(x[:4], y[:4])
    tensors = variables_of(model)
    adapter.snapshot(tensors).write(str(tmp_path))

    def train_on() -> dict[str, np.ndarray]:
        for start in range(4, len(x), 4):
            model.train_on_batch(x[start : start + 4], y[start : start + 4])
        return dict(adapter.snapshot(tensors).arrays)

    first = train_on()
    for name, value in backends.read(adapter.name, str(tmp_path)).items():
        adapter.assign(tensors[name], value)
    assert differing(train_on(), first) == []


def test_a_full_disk_raises(adapter: Backend, tmp_path: Path) -> None:
    """A write that did not fit is never taken for one that did."""
    script = tmp_path / "full.py"
    script.write_text(
        "import signal, sys\n"
        "import numpy as np\n"
        "from resilient.backends import get_backend\n"
        "from support.full_disk import no_file_beyond\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "snapshot = get_backend().snapshot({'x': np.random.rand(1 << 18)})\n"
        "no_file_beyond(1 << 20)\n"
        "try:\n"
        "    snapshot.write(sys.argv[1])\n"
        "except Exception as error:\n"
        "    print('raised', type(error).__name__)\n"
    )
    status, told = run_alone(script, tmp_path)
    assert status == 0, told
    expected = {
        "tensorflow": "raised ",
        "jax": "raised ValueError",
        "torch": "raised OSError",
    }
    assert expected[adapter.name] in told


def test_copies_made_on_an_accelerator_outlive_a_donation(
    adapter: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's way off the CPU, here on the CPU: the copy is made before the next step."""
    if adapter.name != "jax":
        pytest.skip("only JAX donates buffers")
    import jax

    from resilient.backends import jax as module

    monkeypatch.setattr(module, "_on_host", lambda value: isinstance(value, np.ndarray))
    before = np.arange(1 << 16, dtype=np.float32)
    tensor = live(before)
    snapshot = adapter.snapshot({"x": tensor, "plain": before})
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    for _ in range(3):
        tensor = step(tensor)
    assert same(snapshot.arrays["x"], before)
    snapshot.write(str(tmp_path))
    snapshot.release()
    assert (
        differing(
            backends.read(adapter.name, str(tmp_path)), {"x": before, "plain": before}
        )
        == []
    )


def test_the_memory_of_an_earlier_snapshot_is_reused(adapter: Backend) -> None:
    """PyTorch copies, into memory that it has written to before; others hold on."""
    tensors = {"a": live(np.ones(1 << 12)), "b": live(np.arange(5, dtype=np.float32))}
    first = adapter.snapshot(tensors)
    where = {name: array.ctypes.data for name, array in first.arrays.items()}
    first.release()
    other = {"a": live(np.full(1 << 12, 2.0)), "b": live(np.arange(6))}
    second = adapter.snapshot(other, reuse=first)
    assert same(second.arrays["a"], np.full(1 << 12, 2.0, second.arrays["a"].dtype))
    assert second.arrays["b"].tolist() == list(range(6))
    if adapter.name == "torch":
        assert second.arrays["a"].ctypes.data == where["a"]
