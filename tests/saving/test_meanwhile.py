"""Training goes on while a checkpoint is written, and neither disturbs the other."""

import errno
import gc
import json
import threading
import time

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient import CheckpointWriteError
from resilient.backends import get_backend
from resilient.saving import record
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.run_json import encoded
from resilient.saving.snapshot import Snapshot
from resilient.storage.store import Store
from resilient.telemetry.events import read_events
from resilient.telemetry.goodput import goodput

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

LEAD = 3  # batches that are trained before a write begins


class Batches(keras.callbacks.Callback):
    """Counts batches, and tells who waits for some.

    ``last`` is how many there are: nobody waits for more.
    """

    async_safe = True

    def __init__(self, last=3 * fitting.STEPS):
        super().__init__()
        self._last, self._seen, self._more = last, 0, threading.Condition()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        with self._more:
            self._seen += 1
            self._more.notify_all()

    def wait_for(self, more):
        """Return when so many more batches were trained, or the last one was."""
        with self._more:
            wanted = min(self._seen + more, self._last)
            assert self._more.wait_for(lambda: self._seen >= wanted, 30)


def net(**compiling):
    """Moving statistics, seeds, slots, averages; large enough for several threads."""
    return fitting.model(
        of=lambda: [
            keras.Input((3,)),
            keras.layers.Dense(1500, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1000),
            keras.layers.Dense(1),
        ],
        optimizer=keras.optimizers.Adam(0.01, use_ema=True),
        **compiling,
    )


def copies(snapshot):
    """What is to be written, in memory that nothing else knows."""
    arrays = {
        name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
        for name, array in snapshot.tensors.arrays.items()
    }
    return arrays, json.dumps(encoded(snapshot.run)), json.dumps(snapshot.position)


def write_after(monkeypatch, wait):
    """Let each write begin when ``wait`` returns."""
    write = Snapshot.write_state

    def late(self, directory):
        wait()
        return write(self, directory)

    monkeypatch.setattr(Snapshot, "write_state", late)


def compiled():
    """Ways to compile a step here: TensorFlow without XLA has kernels of its own."""
    backend = keras.backend.backend()
    return {"tensorflow": [False, True], "jax": [True], "torch": [False]}[backend]


@pytest.mark.parametrize("jit", compiled())
def test_a_checkpoint_is_of_its_step_whatever_is_trained_meanwhile(
    jit, tmp_path, monkeypatch
):
    """Byte for byte: tensors, callbacks, data; written when training is far ahead."""
    taken, submit = {}, Checkpointer.submit

    def keep_copies(self, snapshot):
        taken[snapshot.progress.step] = copies(snapshot)
        submit(self, snapshot)

    monkeypatch.setattr(Checkpointer, "submit", keep_copies)
    write_after(monkeypatch, lambda: batches.wait_for(LEAD))
    for epochs in (9, 36, 144):  # on a slow disk so many that it takes three meanwhile
        taken.clear()
        batches = Batches(epochs * fitting.STEPS)
        # Holds the best weights: arrays beside the model's own.
        best = keras.callbacks.EarlyStopping(
            "loss", patience=epochs, restore_best_weights=True
        )
        fitting.fit(
            net(run_eagerly=False, jit_compile=jit),
            tmp_path / str(epochs),
            epochs=epochs,
            callbacks=[best, batches],
            save_freq=2,
            keep=1000,
        )
        found = Store(tmp_path / str(epochs)).checkpoints()
        if len(found) >= 3:
            break
    assert [c.step for c in found] == sorted(taken)
    assert len(found) >= 3
    assert max(taken) == epochs * fitting.STEPS
    previous = None
    for checkpoint in found:
        read = record.PartReader(get_backend())(checkpoint)
        arrays, run, position = taken[checkpoint.step]
        assert sorted(read.tensors) == sorted(arrays)
        for name, array in arrays.items():
            assert read.tensors[name].dtype == array.dtype
            assert read.tensors[name].tobytes() == array.tobytes(), name
        assert (json.dumps(encoded(read.run)), json.dumps(read.position)) == (
            run,
            position,
        )
        weights = next(arrays[name] for name in arrays if name.startswith("trainable"))
        assert previous is None or weights.tobytes() != previous
        previous = weights.tobytes()


@pytest.mark.spread
def test_the_end_is_committed_when_fit_returns(tmp_path, monkeypatch):
    write_after(monkeypatch, lambda: time.sleep(0.3))
    before = set(threading.enumerate())
    fitting.fit(fitting.model(), tmp_path, epochs=1, save_freq="epoch")
    assert fitting.steps(tmp_path) == [fitting.STEPS]
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert "resilient" not in "".join(left)


@pytest.mark.spread
def test_a_slow_disk_does_not_stop_the_training(tmp_path, monkeypatch):
    """Saves are spaced out; what is there in the end is the end."""
    batches = Batches()
    write_after(monkeypatch, lambda: batches.wait_for(5))
    net = fitting.model()
    fitting.fit(net, tmp_path, callbacks=[batches], save_freq=1, keep=100)
    found = fitting.steps(tmp_path)
    assert 2 <= len(found) <= 5
    assert found[-1] == 3 * fitting.STEPS
    named = [event["event"] for event in read_events(tmp_path)]
    assert named.count("spaced out") == 1
    assert named.count("saved") == len(found)
    late = [event.get("postponed") for event in read_events(tmp_path)].count(True)
    assert late == goodput(tmp_path).postponed > 0
    plain = fitting.model()
    plain.fit(**fitting.arguments(callbacks=[Batches()]))
    fitting.assert_equal(plain, net)


def full(self, directory):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.spread
def test_a_full_disk_stops_the_training_at_the_next_batch(tmp_path, monkeypatch):
    """Not only in a log, and not only at the end."""
    batches = Batches()
    monkeypatch.setattr(Snapshot, "write_state", full)
    slow = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(0.05)
    )
    with pytest.raises(CheckpointWriteError, match="No space left on device"):
        fitting.fit(
            fitting.model(), tmp_path, callbacks=[slow, batches], save_freq=2, epochs=9
        )
    assert 2 < batches._seen < 2 * fitting.STEPS


@pytest.mark.spread
def test_a_full_disk_is_told_at_the_end_of_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(Snapshot, "write_state", full)
    with pytest.raises(CheckpointWriteError, match="step 6"):
        fitting.fit(fitting.model(), tmp_path, epochs=1, save_freq="epoch")


@pytest.mark.spread
def test_a_users_error_leaves_the_save_before_it_committed(tmp_path, monkeypatch):
    """It was in flight: fit ends it before the error goes on its way."""
    write_after(monkeypatch, lambda: time.sleep(0.3))
    fitting.interrupted(tmp_path, epoch=0, batch=4, save_freq=4)
    assert fitting.steps(tmp_path) == [4]


@pytest.mark.spread
def test_a_checkpoint_may_be_restored_in_fit_while_one_is_written(
    tmp_path, monkeypatch
):
    """It is the one in flight, since that is the newest in a moment."""
    restored = []

    def restore():
        restored.append(run.restore().step)

    write_after(monkeypatch, lambda: time.sleep(0.2))
    run = resilient.ResilientFit(fitting.model(), checkpoint_dir=tmp_path, save_freq=4)
    run.fit(**fitting.arguments(callbacks=[fitting.Do(restore, epoch=0, batch=4)]))
    assert restored == [4]


def test_what_was_restored_is_not_kept(tmp_path):
    """A checkpoint in memory is as large as the state; its file may be deleted soon."""

    def records():
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) is record.SavedState]

    kept, before = [], records()  # others, of tests in this process

    def count():
        kept.append(len(records()) - len(before))

    asks = [fitting.Do(count, epoch=2, batch=1) for _ in range(2)]
    fitting.interrupted(tmp_path, callbacks=asks[:1])
    again = [fitting.Interrupt(), asks[1]]
    fitting.fit(fitting.model(), tmp_path, callbacks=again)
    assert kept == [0]


class Synchronised(keras.Sequential):
    """Counts how often JAX's state is moved into the variables."""

    _synchronised = 0

    def jax_state_sync(self):
        self._synchronised += not getattr(self, "_jax_state_synced", True)
        super().jax_state_sync()

    if hasattr(keras.Model, "state_sync"):  # its name on JAX since Keras 3.16

        def state_sync(self):
            self._synchronised += not getattr(self, "_jax_state_synced", True)
            super().state_sync()


# What it counts is no variable, as a warning says.
@pytest.mark.filterwarnings("ignore::resilient.NotExactWarning")
def test_nothing_slow_is_in_the_loop(tmp_path):
    """JAX's state is synchronised as often as without us, and callbacks stay apart."""

    plain = fitting.model(cls=Synchronised, run_eagerly=False)
    callbacks = keras.callbacks.CallbackList([Batches()], True, model=plain)
    plain.fit(**fitting.arguments(callbacks=callbacks))
    ours = fitting.model(cls=Synchronised, run_eagerly=False)
    watched = keras.callbacks.CallbackList([Batches()], True, model=ours)
    fitting.fit(ours, tmp_path, callbacks=watched, save_freq=2)
    assert ours._synchronised == plain._synchronised
    assert watched._async_train == callbacks._async_train
    assert plain._synchronised > 0 or keras.backend.backend() != "jax"
    assert callbacks._async_train or keras.backend.backend() == "tensorflow"
