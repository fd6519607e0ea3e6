"""TensorBoard's event files: no step twice or lost, nobody else's file touched."""

import json
import os
import signal
import socket

import keras
import pytest
from support.gang import run_alone

from resilient.errors import NotExactWarning
from resilient.objects.callbacks.capture import CallbackStates

HOST = socket.gethostname()
DEAD = {"host": HOST, "pid": 99_999_999, "started": 1000.5}
LATER = {"host": HOST, "pid": 99_999_998, "started": 2000.5}

pytestmark = pytest.mark.spread


def event_file(directory, created, pid, number=0, *, content=b"x" * 10, host=HOST):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"events.out.tfevents.{created}.{host}.{pid}.{number}.v2"
    path.write_bytes(content)
    return path


def tensorboard(directory, attempts=()):
    """The callback as when training begins; it needs no TensorFlow so far."""
    callback = keras.callbacks.TensorBoard(str(directory), write_graph=False)
    callback.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    callback._push_writer = lambda writer, step: None
    vars(keras.callbacks.TensorBoard)  # _train_writer would import TensorFlow
    callback._writers = {"train": Writer()}
    callback.on_train_begin()
    callback._writers = {}
    del callback._push_writer
    states = CallbackStates([callback], attempts=attempts)
    states.learn()
    return callback, states


class Writer:
    def flush(self):
        pass

    def close(self):
        pass


def saved(states):
    arrays = {}
    return json.loads(json.dumps(states.capture(arrays)[0])), arrays


def test_files_are_cut_to_what_the_snapshot_saw(tmp_path):
    """Also those of this process, whose writers are then new ones."""
    callback, states = tensorboard(tmp_path)
    ours = event_file(tmp_path / "train", 1001, os.getpid())
    found = saved(states)
    ours.write_bytes(b"x" * 10 + b"later")
    later = event_file(tmp_path / "validation", 1002, os.getpid(), 1)
    callback._writers = {"train": Writer()}
    states.restore(*found)
    assert callback._writers == {}
    assert ours.read_bytes() == b"x" * 10
    assert not later.exists()


@pytest.mark.parametrize(
    "key",
    [
        "../victim",
        "train/../../victim",
        "train/victim",
        "/{victim}",
        "other/{name}",
        "train/inner/{name}",
    ],
)
def test_no_other_file_is_ever_cut(tmp_path, key):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    _, states = tensorboard(tmp_path / "logs")
    ours = event_file(tmp_path / "logs" / "train", 1001, os.getpid())
    found, arrays = saved(states)
    text = json.dumps(found)
    assert f"train/{ours.name}" in text
    hostile = key.format(victim=victim, name=ours.name)
    found = json.loads(text.replace(f"train/{ours.name}", hostile))
    with pytest.warns(NotExactWarning, match="lost its last 10 bytes"):
        states.restore(found, arrays)
    assert victim.read_text() == "precious"


def test_a_link_in_the_place_of_an_event_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious and long")
    _, states = tensorboard(tmp_path / "logs")
    ours = event_file(tmp_path / "logs" / "train", 1001, os.getpid())
    found = saved(states)
    ours.unlink()
    ours.symlink_to(victim)
    states.restore(*found)
    assert victim.read_text() == "precious and long"


def test_another_process_cuts_recorded_files_and_removes_later_ones(tmp_path):
    train, validation = tmp_path / "train", tmp_path / "validation"
    _, states = tensorboard(tmp_path)
    recorded = event_file(train, 1001, os.getpid())
    found, arrays = saved(states)
    text = json.dumps(found).replace(f".{os.getpid()}.", f".{DEAD['pid']}.")
    recorded = recorded.rename(
        str(recorded).replace(f".{os.getpid()}.", f".{DEAD['pid']}.")
    )
    recorded.write_bytes(b"x" * 10 + b"later")
    removed = [
        event_file(validation, 1003, DEAD["pid"], 1),
        event_file(train, 2001, LATER["pid"]),
    ]
    others = [
        event_file(train, 999, DEAD["pid"]),  # before that attempt began
        event_file(train, 1001, DEAD["pid"], host="elsewhere"),
        event_file(train, 1001, 4242),
        event_file(tmp_path / "other", 1003, DEAD["pid"]),
    ]
    _, states = tensorboard(tmp_path, attempts=[DEAD, LATER])
    for _ in range(2):
        states.restore(json.loads(text), arrays)
    assert recorded.read_bytes() == b"x" * 10
    assert not any(path.exists() for path in removed)
    assert all(path.read_bytes() == b"x" * 10 for path in others)
    # The next snapshot still knows the file of the attempt before.
    assert str(recorded.name) in json.dumps(saved(states)[0])


def test_a_start_without_a_checkpoint_removes_what_dead_attempts_wrote(tmp_path):
    died = event_file(tmp_path / "train", 1001, DEAD["pid"])
    other = event_file(tmp_path / "train", 1001, 4242)
    _, states = tensorboard(tmp_path, attempts=[DEAD])
    states.begin_anew()
    assert not died.exists()
    assert other.exists()


@pytest.mark.parametrize("left", [None, b"xx"])
def test_lost_records_are_named(tmp_path, left):
    path = event_file(tmp_path / "train", 1001, os.getpid())
    _, states = tensorboard(tmp_path)
    path = event_file(tmp_path / "train", 1002, os.getpid())
    found = saved(states)
    text = json.dumps(found[0]).replace(f".{os.getpid()}.", ".5.")
    path = path.rename(str(path).replace(f".{os.getpid()}.", ".5."))
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    _, states = tensorboard(tmp_path)
    with pytest.warns(NotExactWarning, match="lost its last"):
        states.restore(json.loads(text), found[1])
    states.restore(json.loads(text), found[1])  # said once


def test_files_of_an_earlier_fit_of_this_process_are_not_ours(tmp_path):
    earlier = event_file(tmp_path / "train", 1001, os.getpid(), 3)
    _, states = tensorboard(tmp_path)
    found = saved(states)
    assert found[0][0]["special"]["v"][0][1]["v"] == []
    mine = event_file(tmp_path / "train", 1001, os.getpid(), 4)
    states.restore(*found)
    assert earlier.exists()
    assert not mine.exists()


def test_a_writer_that_still_lives_cannot_write_into_a_file_that_was_cut(tmp_path):
    """After an exception in a notebook, fit is called again in the same process."""
    first, states = tensorboard(tmp_path)
    path = event_file(tmp_path / "train", 1001, os.getpid(), content=b"")
    with open(path, "wb", buffering=0) as writer:
        writer.write(b"x" * 10)
        found = saved(states)
        writer.write(b"later")
        _, states = tensorboard(tmp_path)
        states.restore(*found)
        writer.write(b"and later")
    assert path.read_bytes() == b"x" * 10
    assert first.log_dir == str(tmp_path)


def test_remote_log_directories_are_named_once():
    callback, states = tensorboard("gs://bucket/logs")
    with pytest.warns(NotExactWarning, match="gs://bucket/logs.* is not local"):
        found = saved(states)
    saved(states)
    states.restore(*found)
    assert callback._train_dir == "gs://bucket/logs/train"


def test_the_time_between_two_attempts_does_not_slow_the_steps_down(tmp_path):
    callback, states = tensorboard(tmp_path)
    callback._epoch_start_time = 1000.0
    found = saved(states)
    ((_, ago),) = found[0][0]["special"]["v"][1][1]["v"]
    callback._epoch_start_time = 0.0
    states.restore(*found)
    assert abs(callback._epoch_start_time - 1000.0) < 60 < ago


def test_keras_still_has_the_names_that_we_use():
    """A contract with keras.callbacks.TensorBoard, whose writers are private."""
    callback = keras.callbacks.TensorBoard("logs", write_graph=False)
    callback.set_model(None)
    names = "_writers _prev_summary_state _global_train_batch _train_dir _val_dir"
    for name in [*names.split(), "log_dir"]:
        assert hasattr(callback, name), f"TensorBoard.{name} is gone"
    for name in ("_push_writer", "_pop_writer", "_train_writer"):
        assert name in vars(keras.callbacks.TensorBoard), f"TensorBoard.{name} is gone"


# With TensorFlow, killed for real ----------------------------------------------------

SCRIPT = """
import os, signal, sys
import keras, numpy as np
import resilient

directory, kill = sys.argv[1:]
keras.utils.set_random_seed(1)
x = np.random.rand(20, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.add(keras.layers.Dense(1))
model.compile("adam", "mse")


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if kill == f"{self.epoch}:{batch}":
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = [
    keras.callbacks.TensorBoard(f"{directory}/epoch", histogram_freq=1),
    keras.callbacks.TensorBoard(f"{directory}/batch", update_freq=2),
    Kill(),
]
arguments = dict(epochs=3, batch_size=4, validation_split=0.2, verbose=0)
arguments |= dict(x=x, y=x.sum(1), callbacks=callbacks)
if kill == "alone":
    model.fit(**arguments)
else:
    run = f"{directory}/run"
    resilient.fit(model, **arguments, checkpoint_dir=run, save_freq=3)
"""


def records(directory):
    """Every summary of each writer, in order: tag, step and value."""
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    found = {}
    for part in ("epoch/train", "epoch/validation", "batch/train", "batch/validation"):
        found[part] = [
            (value.tag, event.step, value.tensor.SerializeToString())
            for file in sorted((directory / part).glob("events.*"))
            for record in tf.data.TFRecordDataset(str(file))
            for event in [event_pb2.Event.FromString(record.numpy())]
            for value in event.summary.value
        ]
    return found


@pytest.mark.everywhere
def test_killed_twice_tensorboard_shows_what_it_shows_uninterrupted(tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("Keras's TensorBoard callback needs TensorFlow")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def attempt(directory, kill):
        status, text = run_alone(script, tmp_path / directory, kill)
        assert status in (0, -signal.SIGKILL), text
        return status

    assert attempt("alone", "alone") == 0
    assert attempt("killed", "1:1") == -signal.SIGKILL  # a checkpoint in mid-epoch
    assert attempt("killed", "2:2") == -signal.SIGKILL  # twice
    assert attempt("killed", "never") == 0
    expected, actual = records(tmp_path / "alone"), records(tmp_path / "killed")
    assert {k: [r[:2] for r in v] for k, v in actual.items()} == {
        k: [r[:2] for r in v] for k, v in expected.items()
    }
    assert actual == expected
    assert len(expected["epoch/train"]) > 6
