"""Callbacks know in a new process what they knew in the one before."""

import collections
import csv
import dataclasses
import functools
import io
import json
import logging
import os
import random
import stat
import threading
import time
from typing import ClassVar

import keras
import numpy as np
import pytest
import rich.console
import rich.style
import rich.table

from resilient.errors import (
    CheckpointMismatchError,
    CheckpointWriteError,
    CorruptCheckpointError,
    NotExactWarning,
    NotSupportedError,
)
from resilient.objects.callbacks import special
from resilient.objects.callbacks.capture import CallbackStates, monitored
from resilient.policies import every

# Keras on NumPy 2 (keras.Variable.__array__).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")

LOGS = [3.0, 2.0, 2.5, 2.25, 1.0, 1.5]


def begin(callbacks, model=None):
    """What ``fit`` does before the first epoch."""
    for callback in callbacks:
        callback.set_params({"verbose": 0, "epochs": 6, "steps": 4})
        callback.set_model(model or small_model())
    states = CallbackStates(callbacks, model)
    for callback in callbacks:
        callback.on_train_begin()
    states.learn()
    return states


def small_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def epoch(callbacks, number, loss=None):
    """One epoch of a ``fit``, without a model that learns."""
    for callback in callbacks:
        callback.on_epoch_begin(number)
    batches(callbacks, 0, 4)
    for callback in callbacks:
        callback.on_epoch_end(number, {"loss": LOGS[number] if loss is None else loss})


def batches(callbacks, first, last):
    for batch in range(first, last):
        for callback in callbacks:
            callback.on_train_batch_begin(batch)
            callback.on_train_batch_end(batch, {"loss": 1 / (batch + 1)})


def saved(states):
    """A capture as the next process reads it."""
    arrays = {}
    text = json.dumps(states.capture(arrays)[0])
    return json.loads(text), {name: array.copy() for name, array in arrays.items()}


def known(callback):
    """All attributes but those that Keras sets for each fit, comparable."""
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in vars(callback).items()
        if key not in ("_model", "model", "params")
    }


Place = collections.namedtuple("Place", "x y")


class Mine(keras.callbacks.Callback):
    """A callback as users write them: attributes set by ``setup``."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


def resumed(make, change):
    """A callback changed after a start, and one of a new process, restored."""
    first = make()
    states = begin([first])
    change(first)
    second = make()
    begin([second]).restore(*saved(states))
    return first, second


# Every callback of Keras ----------------------------------------------------------


def decayed(number, rate):
    return rate * 0.9


def nothing(number, logs):
    pass


def keras_callbacks(tmp_path):
    ends = keras.callbacks
    return [
        ends.EarlyStopping(monitor="loss", patience=2, min_delta=0.01),
        ends.EarlyStopping(monitor="loss", patience=5, start_from_epoch=1),
        ends.ReduceLROnPlateau(monitor="loss", patience=1, cooldown=1, factor=0.5),
        ends.LearningRateScheduler(decayed),
        ends.ModelCheckpoint(
            str(tmp_path / "b.weights.h5"),
            monitor="loss",
            save_best_only=True,
            save_weights_only=True,
        ),
        ends.ModelCheckpoint(
            str(tmp_path / "n.weights.h5"),
            monitor="loss",
            save_weights_only=True,
            save_freq=3,
        ),
        ends.TerminateOnNaN(),
        ends.SwapEMAWeights(),
        ends.BackupAndRestore(str(tmp_path / "backup")),
        ends.RemoteMonitor(headers={"a": "b"}),
        ends.LambdaCallback(on_epoch_end=nothing),
        ends.History(),
    ]


def without_requests(callbacks):
    """Drive all but the one that would talk to a server."""
    return [c for c in callbacks if not isinstance(c, keras.callbacks.RemoteMonitor)]


@pytest.mark.parametrize(
    "epochs", [pytest.param(n, marks=[pytest.mark.spread] * (n != 2)) for n in range(5)]
)
def test_every_callback_of_keras_continues_after_any_epoch(tmp_path, epochs):
    alone = keras_callbacks(tmp_path)
    begin(alone)
    for number in range(5):
        epoch(without_requests(alone), number)

    killed = keras_callbacks(tmp_path)
    states = begin(killed)
    for number in range(epochs):
        epoch(without_requests(killed), number)
    found = saved(states)
    assert states.uncaptured() == []

    again = keras_callbacks(tmp_path)
    begin(again).restore(*found)
    for number in range(epochs, 5):
        epoch(without_requests(again), number)
    for expected, actual in zip(alone, again, strict=True):
        assert known(actual) == known(expected)


@pytest.mark.parametrize("batch", range(1, 4))
def test_model_checkpoint_counts_batches_across_a_resume(tmp_path, batch):
    def make():
        return keras.callbacks.ModelCheckpoint(
            str(tmp_path / "{epoch}-{batch}.weights.h5"),
            monitor="loss",
            save_weights_only=True,
            save_freq=3,
        )

    first = make()
    states = begin([first])
    epoch([first], 0)
    first.on_epoch_begin(1)
    batches([first], 0, batch)
    found = saved(states)
    files = set(tmp_path.iterdir())
    batches([first], batch, 4)
    expected = {path.name for path in set(tmp_path.iterdir()) - files}
    for path in set(tmp_path.iterdir()) - files:
        path.unlink()

    second = make()
    states = begin([second])
    states.restore(*found)
    second.on_epoch_begin(1)
    states.restore(*found)
    batches([second], batch, 4)
    assert {path.name for path in set(tmp_path.iterdir()) - files} == expected
    assert known(second) == known(first)


def test_model_checkpoint_keeps_a_better_model_after_a_resume(tmp_path):
    path = tmp_path / "best.weights.h5"

    def make():
        return keras.callbacks.ModelCheckpoint(
            str(path), monitor="loss", save_best_only=True, save_weights_only=True
        )

    first = make()
    states = begin([first])
    epoch([first], 0, loss=1.0)
    best = path.read_bytes()
    second = make()
    begin([second]).restore(*saved(states))
    epoch([second], 1, loss=2.0)
    assert path.read_bytes() == best
    epoch([second], 2, loss=0.5)
    assert path.read_bytes() != best


def test_early_stopping_keeps_its_best_weights():
    def make():
        return keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)

    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(20)])
    model.compile("sgd", "mse")
    first = make()
    states = begin([first], model)
    epoch([first], 0)
    best = [weight.copy() for weight in model.get_weights()]
    found, arrays = saved(states)
    assert set(arrays) == {"callbacks.EarlyStopping.1.best_weights__0__"}
    model.set_weights([weight + 1 for weight in best])

    second = make()
    begin([second], model).restore(found, arrays)
    second.on_train_end()
    for expected, actual in zip(best, model.get_weights(), strict=True):
        assert actual.tobytes() == expected.tobytes()


def test_history_is_the_whole_runs():
    first = keras.callbacks.History()
    states = begin([first])
    for number in range(3):
        epoch([first], number, loss=1 / (number + 3))
    second = keras.callbacks.History()
    held = second.history
    begin([second]).restore(*saved(states))
    epoch([second], 3, loss=float("nan"))
    assert second.epoch == [0, 1, 2, 3]
    assert second.history["loss"][:3] == [1 / 3, 1 / 4, 1 / 5]
    assert held is second.history


def test_the_progress_bar_goes_on_within_the_epoch(capsys):
    def make():
        bar = keras.callbacks.ProgbarLogger()
        bar.set_params({"verbose": 1, "epochs": 2, "steps": 4})
        bar.on_train_begin()
        states = CallbackStates([bar])
        states.learn()
        return bar, states

    first, states = make()
    first.on_epoch_begin(0)
    batches([first], 0, 2)
    first.progbar._start -= 100.0
    found = saved(states)
    batches([first], 2, 4)

    second, states = make()
    states.restore(*found)
    second.on_epoch_begin(0)
    states.restore(*found)
    assert second.seen == 2
    batches([second], 2, 4)
    assert abs(second.progbar._start - first.progbar._start) < 50
    second.on_epoch_end(0, {"loss": 1.0})
    assert "4/4" in capsys.readouterr().out


# The file of ModelCheckpoint -------------------------------------------------------


def model_checkpoint(path):
    callback = keras.callbacks.ModelCheckpoint(
        str(path), monitor="loss", save_weights_only=True
    )
    return callback, begin([callback])


@pytest.mark.parametrize("there", [b"of another fit", None])
def test_what_model_checkpoint_wrote_is_restored(tmp_path, there):
    target, path = tmp_path / "disk" / "b.weights.h5", tmp_path / "b.weights.h5"
    target.parent.mkdir()
    path.symlink_to(target)
    callback, states = model_checkpoint(path)
    assert saved(states)[0][0].get("special") is None
    epoch([callback], 0)
    written, found = target.read_bytes(), saved(states)
    if there is None:
        target.unlink()
        target.parent.rmdir()
    else:
        target.write_bytes(there)
        target.chmod(0o600)
    _, states = model_checkpoint(path)
    states.restore(*found)
    assert path.is_symlink()
    assert target.read_bytes() == written
    assert there is None or stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(target.parent.iterdir()) == [target]
    before = target.stat()
    states.restore(*found)
    assert os.path.samestat(target.stat(), before)
    assert (
        saved(states)[1]["callbacks.ModelCheckpoint.1.special.content"].tobytes()
        == written
    )


def test_a_new_name_of_the_file_gets_what_was_written(tmp_path):
    callback, states = model_checkpoint(tmp_path / "a.weights.h5")
    epoch([callback], 0)
    _, again = model_checkpoint(tmp_path / "new" / "{{b}}.weights.h5")
    again.restore(*saved(states))
    written = (tmp_path / "new" / "{b}.weights.h5").read_bytes()
    assert written == (tmp_path / "a.weights.h5").read_bytes()


def test_a_file_that_is_written_twice_in_no_time_is_read_twice(tmp_path):
    """The second time leaves the same size and, on a coarse clock, the same time."""
    path = tmp_path / "b.weights.h5"
    _, states = model_checkpoint(path)
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, ns=(time.time_ns(), 10**9 * int(time.time())))
        (entry,), arrays = saved(states)
        _, again = model_checkpoint(tmp_path / "copy.weights.h5")
        again.restore([entry], arrays)
        assert (tmp_path / "copy.weights.h5").read_bytes() == content


def test_files_whose_names_have_fields_are_left(tmp_path):
    callback, states = model_checkpoint(tmp_path / "{epoch}.weights.h5")
    epoch([callback], 0)
    assert saved(states)[0][0].get("special") is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gs://bucket/b.weights.h5", "it is not local"),
        ("directory.weights.h5", "it cannot be read"),
        ("b.weights.h5", "it has 10,001 bytes, more than 10,000"),
    ],
)
def test_a_file_that_is_not_kept_is_said_once(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("resilient.objects.callbacks.files.LIMIT", 10_000)
    (tmp_path / "directory.weights.h5").mkdir()
    (tmp_path / "b.weights.h5").write_bytes(bytes(10_001))
    _, states = model_checkpoint(name)
    with pytest.warns(NotExactWarning, match=why) as said:
        found = saved(states), saved(states)
    assert [f[0][0].get("special") for f in found] == [None, None]
    assert len(said) == 1


def test_a_file_that_cannot_be_restored_is_an_error(tmp_path):
    callback, states = model_checkpoint(tmp_path / "a.weights.h5")
    epoch([callback], 0)
    (tmp_path / "file").touch()
    _, again = model_checkpoint(tmp_path / "file" / "b.weights.h5")
    with pytest.raises(CheckpointWriteError, match="cannot be restored"):
        again.restore(*saved(states))


# CSVLogger -------------------------------------------------------------------------


def csv_logger(path, append):
    callback = keras.callbacks.CSVLogger(str(path), append=append, separator=";")
    return callback, begin([callback])


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("before", [None, "", "epoch;loss\n7;1.0\n"])
@pytest.mark.parametrize("epochs", range(4))
@pytest.mark.parametrize("lost", [0, 1])
def test_csv_file_ends_as_the_uninterrupted_runs(
    tmp_path, append, before, epochs, lost
):
    path = tmp_path / "log.csv"

    def start():
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(before)

    start()
    alone, _ = csv_logger(path, append)
    for number in range(4):
        epoch([alone], number)
    alone.on_train_end()
    expected = path.read_bytes()

    start()
    killed, states = csv_logger(path, append)
    for number in range(epochs):
        epoch([killed], number)
    found = saved(states)
    for number in range(epochs, min(epochs + lost, 4)):
        epoch([killed], number)  # rows after the last checkpoint
    killed.csv_file.close()

    again, states = csv_logger(path, append)
    states.restore(*found)
    states.restore(*found)
    for number in range(epochs, 4):
        epoch([again], number)
    again.on_train_end()
    assert path.read_bytes() == expected
    alone, again = known(alone), known(again)
    assert alone.pop("csv_file").closed
    assert again.pop("csv_file").closed
    assert again == alone


def test_a_new_csv_file_name_gets_the_rows_so_far(tmp_path):
    first, states = csv_logger(tmp_path / "a.csv", append=False)
    epoch([first], 0)
    second, others = csv_logger(tmp_path / "b.csv", append=False)
    others.restore(*saved(states))
    epoch([second], 1)
    with open(tmp_path / "b.csv", newline="") as file:
        rows = list(csv.reader(file, delimiter=";"))
    assert [row[0] for row in rows] == ["epoch", "0", "1"]
    for callback in (first, second):
        callback.csv_file.close()


def test_rows_of_an_attempt_without_a_checkpoint_are_named(tmp_path):
    path = tmp_path / "a.csv"
    died, _ = csv_logger(path, append=True)
    epoch([died], 0)
    died.csv_file.close()
    again, _ = csv_logger(path, append=True)
    dead = {"host": "h", "pid": 1, "started": path.stat().st_mtime - 5}
    with pytest.warns(NotExactWarning, match="died before a checkpoint"):
        CallbackStates([again], attempts=[dead]).begin_anew()
    later = {**dead, "started": path.stat().st_mtime + 5}
    CallbackStates([again], attempts=[later]).begin_anew()
    again.csv_file.close()


def test_a_csv_file_above_the_limit_is_named_once(tmp_path, monkeypatch):
    monkeypatch.setattr("resilient.objects.callbacks.files.LIMIT", 10)
    callback, states = csv_logger(tmp_path / "a.csv", append=False)
    epoch([callback], 0)
    with pytest.warns(NotExactWarning, match=r"a\.csv.*more than 10"):
        found = saved(states)
    assert found[0][0].get("special") is None
    saved(states)
    callback.csv_file.close()


def test_a_csv_file_that_is_gone_is_named(tmp_path):
    callback, states = csv_logger(tmp_path / "a.csv", append=False)
    epoch([callback], 0)
    (tmp_path / "a.csv").unlink()
    with pytest.warns(NotExactWarning, match="it is not there any more"):
        assert saved(states)[0][0].get("special") is None
    callback.csv_file.close()


def test_many_rows_travel_beside_the_json(tmp_path):
    callback, states = csv_logger(tmp_path / "a.csv", append=False)
    for number in range(200):
        epoch([callback], number, loss=1.0)
    _, arrays = saved(states)
    assert (
        bytes(arrays["callbacks.CSVLogger.1.special.content"])
        == (tmp_path / "a.csv").read_bytes()
    )
    callback.csv_file.close()


# OrbaxCheckpoint ---------------------------------------------------------------------


@pytest.fixture
def orbax_checkpoint(tmp_path, backend):
    """Makes the callback; Orbax comes with the JAX extra."""
    if backend != "jax" or not hasattr(keras.callbacks, "OrbaxCheckpoint"):
        pytest.skip("OrbaxCheckpoint needs Orbax and a Keras that has it")

    def make(**more):
        return keras.callbacks.OrbaxCheckpoint(
            str(tmp_path / "orbax"), monitor="loss", max_to_keep=2, **more
        )

    return make


def orbax_steps(callback):
    callback.wait_until_finished()
    return sorted(int(path.name) for path in callback.checkpointer.directory.iterdir())


@pytest.mark.filterwarnings("ignore")  # Orbax's own
def test_orbax_checkpoint_writes_again_what_came_after_the_snapshot(orbax_checkpoint):
    model = small_model()
    first = orbax_checkpoint()
    states = begin([first], model)
    assert states.uncaptured() == []
    epoch([first], 0)
    epoch([first], 1)
    found = saved(states)
    epoch([first], 2)
    assert orbax_steps(first) == [1, 2]
    first.on_train_end()

    second = orbax_checkpoint()
    states = begin([second], model)
    states.restore(*found)
    states.restore(*found)
    assert orbax_steps(second) == [1]
    epoch([second], 2)
    assert orbax_steps(second) == [1, 2]
    second.on_train_end()


@pytest.mark.filterwarnings("ignore")  # Orbax's own
def test_orbax_checkpoint_begins_anew_after_an_attempt_without_a_checkpoint(
    orbax_checkpoint,
):
    model = small_model()
    first = orbax_checkpoint()
    begin([first], model)
    epoch([first], 0)
    first.on_train_end()

    second = orbax_checkpoint()
    for attempts, steps in ([], [0]), ([{"started": 1.0}], []):
        CallbackStates([second], attempts=attempts).begin_anew()
        assert orbax_steps(second) == steps
    second.on_train_end()


# Callbacks of users ------------------------------------------------------------------


def test_changed_configuration_in_the_script_is_not_overwritten():
    first = keras.callbacks.EarlyStopping(monitor="loss", patience=2)
    states = begin([first])
    epoch([first], 0)
    epoch([first], 1, loss=9.0)
    second = keras.callbacks.EarlyStopping(monitor="loss", patience=7, verbose=1)
    begin([second]).restore(*saved(states))
    assert (second.patience, second.verbose) == (7, 1)
    assert (second.wait, second.best) == (1, 3.0)


def test_attributes_of_many_types_come_back():
    values = {
        "counter": collections.Counter("abc"),
        "window": collections.deque([1.0, 2.0], maxlen=2),
        "confusion": np.arange(4.0),
        "large": np.arange(10_000.0),
        "seen": {1, 2},
        "nothing": None,
        "same": 1,
    }
    first, second = resumed(
        lambda: Mine(counter=None, same=1, seen=set()),
        lambda callback: vars(callback).update(values),
    )
    assert known(second) == known(first)
    assert second.window.maxlen == 2


def test_a_deleted_attribute_is_deleted_again():
    _, second = resumed(lambda: Mine(a=1, b=2), lambda callback: delattr(callback, "a"))
    assert not hasattr(second, "a")
    assert second.b == 2


def test_an_int_that_becomes_a_float_or_bool_is_a_change():
    def change(callback):
        callback.a, callback.b, callback.c = 1.0, True, -0.0

    _, second = resumed(lambda: Mine(a=1, b=1, c=0.0), change)
    assert [type(v) for v in (second.a, second.b)] == [float, bool]
    assert str(second.c) == "-0.0"


def test_what_was_changed_in_place_is_restored_in_place():
    """Others may hold the same list, dict, array or generator."""

    def make():
        return Mine(
            losses=[],
            by_name={},
            sums=np.zeros(3),
            large=np.zeros(1000),
            random=random.Random(1),
            numpy=np.random.default_rng(1),
            rebound=[0],
        )

    def change(callback):
        callback.losses.append(1.0)
        callback.by_name["a"] = 1
        callback.sums += 1
        callback.large += 1
        callback.random.random()
        callback.numpy.random()
        callback.rebound = [1]

    first = make()
    states = begin([first])
    change(first)
    second = make()
    held = dict(vars(second))
    begin([second]).restore(*saved(states))
    same = {key for key in held if vars(second)[key] is held[key] and key[0] != "_"}
    assert same - {"params"} == set(held) - {"rebound", "_model", "params"}
    assert held["rebound"] == [0]
    assert second.losses == [1.0]
    assert second.large.all()
    assert second.random.random() == first.random.random()
    assert second.numpy.random() == first.numpy.random()


def test_restoring_twice_undoes_what_happened_in_between():
    """In mid-epoch, on_epoch_begin runs between the two."""
    first = Mine(losses=[], position=0, kept=5, big=np.zeros(1000), gone=[1])
    states = begin([first])
    first.losses.extend([1.0, 2.0])
    first.position = 3
    found = saved(states)

    second = Mine(losses=[], position=0, kept=5, big=np.zeros(1000), gone=[1])
    states = begin([second])
    states.restore(*found)
    second.losses.clear()
    second.position, second.kept, second.extra = 0, 6, "new"
    second.big += 1
    del second.gone
    states.restore(*found)
    assert not second.big.any()
    assert second.losses == [1.0, 2.0]
    assert (second.position, second.kept, second.gone) == (3, 5, [1])
    assert not hasattr(second, "extra")


def test_lists_on_the_class_are_state_too():
    def make():
        class Counting(keras.callbacks.Callback):
            losses: ClassVar[list] = []
            names = ("a",)

        return Counting()

    _, second = resumed(make, lambda callback: callback.losses.append(2.0))
    assert type(second).losses == [2.0]
    assert "losses" not in vars(second)


def test_own_state_dict_is_used_instead_of_attributes():
    class Own(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.total, self.scratch = 0, 0

        def state_dict(self):
            return {"total": self.total, "weights": np.full(1000, self.total)}

        def load_state_dict(self, state):
            assert state["weights"].shape == (1000,)
            self.total = state["total"]

    def change(callback):
        callback.total, callback.scratch = 3, 9

    _, second = resumed(Own, change)
    assert (second.total, second.scratch) == (3, 0)


def test_a_state_dict_that_cannot_be_kept_is_an_error_that_names_the_callback():
    class Own(keras.callbacks.Callback):
        def state_dict(self):
            return {"file": object()}

        def load_state_dict(self, state):
            raise AssertionError

    states = begin([Own()])
    with pytest.raises(NotSupportedError, match=r"Own[\s\S]*file"):
        states.capture({})


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    seen: list = dataclasses.field(default_factory=list)
    callback: object = None


class Linked:
    def __init__(self, values):
        self.values = values
        self.lock = threading.Lock()
        self.me = self
        self.inner = Meter()


def test_plain_objects_are_restored_in_place():
    def make():
        return Mine(meter=Meter(), linked=Linked([1]))

    first = make()
    states = begin([first])
    first.meter.total = 2.0
    first.meter.seen.append(1)
    first.linked.values.append(2)
    first.linked.inner.total = 4.0
    second = make()
    meter, linked = second.meter, second.linked
    begin([second]).restore(*saved(states))
    assert second.meter is meter
    assert (meter.total, meter.seen) == (2.0, [1])
    assert second.linked is linked
    assert linked.values == [1, 2]
    assert linked.inner.total == 4.0
    assert linked.me is linked
    assert states.uncaptured() == []


@pytest.fixture
def registered():
    """Makes classes known, as a script does."""
    ours = {cls.__name__: cls for cls in (Meter, Other)}
    keras.saving.get_custom_objects().update(ours)
    yield
    for name in ours:
        del keras.saving.get_custom_objects()[name]


def make_later(callback):
    callback.records.append(Meter(1.0, [2]))
    callback.latest = Meter(3.0)
    callback.phase = Other()


@pytest.mark.usefixtures("registered")
def test_plain_objects_made_later_are_made_anew():
    first, second = resumed(lambda: Mine(records=[], phase=Meter()), make_later)
    assert second.records == first.records
    assert second.latest == Meter(3.0)
    assert type(second.phase) is Other
    assert vars(second.phase) == vars(first.phase)


def test_values_of_lists_that_are_made_later_come_back():
    def later(callback):
        callback.place = Place([callback.place], {"a": [2]})
        callback.span = slice(callback.span.stop, (1, 2))

    first, second = resumed(lambda: Mine(place=Place(1, 2), span=slice(3)), later)
    assert type(second.place) is Place
    assert second.place == first.place == ([(1, 2)], {"a": [2]})
    assert second.span == slice(3, (1, 2))


def test_ints_of_which_python_makes_no_text_are_values_and_keys():
    def later(callback):
        callback.number += 1
        callback.table[callback.number] = [1]
        callback.table[callback.number,] = [2]

    first, second = resumed(lambda: Mine(number=10**5000, table={}), later)
    assert second.number == first.number
    assert second.table == first.table


def test_objects_of_classes_that_were_not_there_are_named():
    """A name in a checkpoint makes no object of a class that is not known there."""
    first = Mine(records=[], phase=None)
    states = begin([first])
    make_later(first)
    first.records_seen = 1
    second = Mine(records=[], phase=None)
    begin([second]).restore(*saved(states))
    assert {each.partition(" (")[0] for each in states.uncaptured()} == {
        "Mine.records",
        "Mine.phase",
        "Mine.latest",
    }
    assert (second.records, second.phase, second.records_seen) == ([], None, 1)
    assert not hasattr(second, "latest")


def test_an_object_in_a_list_is_made_where_the_script_has_one_of_its_class():
    first, second = resumed(
        lambda: Mine(records=[Meter(0.0)]),
        lambda callback: callback.records.append(Meter(1.0, [2])),
    )
    assert second.records == first.records == [Meter(0.0), Meter(1.0, [2])]


def test_objects_that_refer_to_callbacks_and_each_other_are_captured_once():
    def make():
        meter = Meter()
        one, two = Mine(meter=meter), Mine(meter=meter)
        meter.callback = one
        one.other, two.other = two, one
        return [one, two]

    first = make()
    states = begin(first)
    first[0].meter.total = 5.0
    second = make()
    again = begin(second)
    for _ in range(2):
        again.restore(*saved(states))
        assert second[0].meter is second[1].meter
        assert second[1].meter.total == 5.0
        second[0].meter.total = 7.0
    assert states.uncaptured() == []


@pytest.mark.usefixtures("registered")
def test_what_two_attributes_share_is_shared_again():
    """Lists, arrays, objects made later, and objects that take another's place."""

    def make():
        one = Mine(best=None, log=[], sums=np.zeros(3), meters=[Linked([]), Linked([])])
        return [one, Mine(log=None, sums=None, latest=None, best=None)]

    def change(one, two):
        one.log.append(1.0)
        two.log, two.sums = one.log, one.sums
        one.sums += 1
        two.latest = one.latest = Meter(2.0)
        one.best = two.best = one.meters[1]
        one.best.values.append(4)

    first, second = make(), make()
    states = begin(first)
    change(*first)
    again = begin(second)
    one, two = second
    log, meters = one.log, list(one.meters)
    for _ in range(2):
        again.restore(*saved(states))
        assert one.log is two.log is log
        assert one.sums is two.sums
        assert one.sums.tolist() == [1.0] * 3
        assert one.latest is two.latest
        assert one.latest == Meter(2.0)
        assert one.best is two.best is meters[1]
        assert one.best.values == [4]
        two.log, two.best, one.best, meters[1].values[:] = [7], meters[0], None, [9]
    assert states.uncaptured() == []


def test_objects_that_change_places_stay_the_same_objects():
    def make():
        return Mine(a=Linked([1]), b=Linked([2]), kept={"a": None})

    def change(callback):
        callback.a, callback.b = callback.b, callback.a
        callback.a.values.append(3)
        callback.kept["a"] = callback.a

    first, second = make(), make()
    states = begin([first])
    change(first)
    a, b = second.a, second.b
    begin([second]).restore(*saved(states))
    assert (second.a, second.b) == (b, a)
    assert (a.values, b.values) == ([1], [2, 3])


def test_an_object_made_by_every_attempt_is_restored_in_place():
    """Such as a metric or a meter that ``on_train_begin`` makes."""

    def make(callback):
        callback.mean = keras.metrics.Mean()
        callback.linked = Linked([1])

    first = Mine()
    states = begin([first])
    make(first)
    states.learn()
    first.mean.update_state([1.0, 4.0])
    first.linked.values.append(2)
    first.linked.inner.total, first.linked.note = 3.0, None
    second = Mine()
    again = begin([second])
    with pytest.warns(NotExactWarning, match=r"Mine\.mean"):
        again.restore(*saved(states))
    make(second)
    mean, linked = second.mean, second.linked
    again.learn()
    again.restore(*saved(states))
    assert second.mean is mean
    assert float(mean.result()) == 2.5
    assert second.linked is linked
    assert (linked.values, linked.inner.total, linked.note) == ([1, 2], 3.0, None)
    assert states.uncaptured() == []


def test_a_metric_that_every_epoch_makes_anew_is_named():
    callback = Mine(mean=keras.metrics.Mean())
    states = begin([callback])
    callback.mean = keras.metrics.Mean()
    saved(states)
    (name,) = states.uncaptured()
    assert name.startswith("Mine.mean (")


def test_swapped_metrics_are_the_same_metrics_with_their_content():
    def make():
        return Mine(a=keras.metrics.Mean(), b=keras.metrics.Mean())

    def change(callback):
        callback.a, callback.b = callback.b, callback.a
        callback.a.update_state([1.0, 4.0])

    first, second = make(), make()
    states = begin([first])
    change(first)
    a, b = second.a, second.b
    again = begin([second])
    for _ in range(2):
        again.restore(*saved(states))
        assert (second.a, second.b) == (b, a)
        assert [float(each.result()) for each in (a, b)] == [0.0, 2.5]
        change(second)


class Other:
    """As plain as Meter, and no Meter."""

    def __init__(self):
        self.total = 7.0


def test_containers_that_hold_opaque_objects_get_their_items_back():
    """Items that were added, removed, replaced, and their order."""

    def make():
        lock = threading.Lock()
        table = {"lock": lock, "a": 1, "b": 2}
        return Mine(grown=[lock, 1], cut=[lock, 1, 2], light=[lock, 1], table=table)

    def change(callback):
        callback.grown.extend([2, 3, 4])
        del callback.cut[1:]
        callback.light[:] = [7, 8, 9]
        callback.table["c"] = callback.table.pop("a")
        callback.table["b"] = 5

    first, second = make(), make()
    states = begin([first])
    change(first)
    again = begin([second])
    for _ in range(2):
        again.restore(*saved(states))
        assert second.grown[1:] == [1, 2, 3, 4]
        assert second.cut == second.grown[:1]
        assert second.light == [7, 8, 9]
        assert list(second.table.items())[1:] == [("b", 5), ("c", 1)]
        second.grown.clear()
        second.table.clear()
        second.cut.append(0)
    assert states.uncaptured() == []


def test_what_cannot_be_kept_any_more_is_named():
    def change(callback):
        callback.rows.append(object())
        callback.by_object = {object(): 1}

    first = Mine(rows=[], by_object={})
    states = begin([first])
    change(first)
    saved(states)
    assert {name.split()[0] for name in states.uncaptured()} == {
        *("Mine.rows", "Mine.by_object")
    }


def test_a_file_in_memory_is_restored():
    _, second = resumed(
        lambda: Mine(log=io.StringIO("before\n")),
        lambda callback: callback.log.seek(0, io.SEEK_END) and callback.log.write("a"),
    )
    assert second.log.getvalue() == "before\na"
    second.log.write("!")
    assert second.log.getvalue() == "before\na!"


def test_replaced_defaults_and_methods_are_named():
    class Rate:
        def value(self):
            return 1

    def scale(x, by=2):
        return x * by

    states = begin([Mine(rate=Rate(), scale=scale)])
    saved(states)
    assert states.uncaptured() == []
    scale.__defaults__ = (3,)
    Rate.value = lambda self: 2
    saved(states)
    assert states.uncaptured() == [
        "Mine.rate:Rate.value (function)",
        "Mine.scale() (tuple)",
    ]


LOG: list = []
DRAWS = np.random.default_rng(0)


def note():
    LOG.append(DRAWS.normal())


def note_twice():
    note()
    note()


class Notes(keras.callbacks.Callback):
    @functools.cached_property
    def rate(self):
        return len(LOG)

    def on_epoch_end(self, epoch, logs=None):
        note_twice()
        assert self.rate


def test_what_functions_of_functions_use_is_restored():
    def reset():
        LOG.clear()
        DRAWS.bit_generator.state = np.random.default_rng(0).bit_generator.state
        return Notes()

    first = reset()
    states = begin([first])
    first.on_epoch_end(0)
    found, logged, drawn = saved(states), [*LOG], DRAWS.bit_generator.state
    second = reset()
    begin([second]).restore(*found)
    assert (LOG, DRAWS.bit_generator.state, second.rate) == (logged, drawn, 2)
    assert states.uncaptured() == []


def test_what_the_script_now_sets_as_it_was_saved_is_no_problem():
    states = begin([first := Mine(graph=True, extra=1, rows=[])])
    first.graph = False
    del first.extra
    first.rows.append(1)
    second = Mine(graph=False, rows=[])
    begin([second]).restore(*saved(states))
    assert known(second) == known(first)


def test_functions_of_libraries_are_configuration():
    states = begin([Mine(several=[np.mean, keras.ops.sum, np.random.default_rng])])
    found = saved(states)
    assert states.uncaptured() == []
    begin([Mine(several=[np.mean, keras.ops.sum, np.random.default_rng])]).restore(
        *found
    )


def test_odd_names_of_attributes_and_keys_differ():
    def make():
        odd = Mine(x=Linked([1]), table={"b": Linked([1]), "b.values": [1]})
        vars(odd)["x.values"] = [1]
        return odd

    def change(callback):
        callback.x.values.append(2)
        vars(callback)["x.values"].append(3)
        callback.table["b"].values.append(4)
        callback.table["b.values"].append(5)

    _, second = resumed(make, change)
    assert second.x.values == [1, 2]
    assert vars(second)["x.values"] == [1, 3]
    assert second.table["b"].values == [1, 4]
    assert second.table["b.values"] == [1, 5]


def test_variables_and_odd_tensors_of_the_backend(backend):
    if backend == "tensorflow":
        import tensorflow as tf

        _, second = resumed(
            lambda: Mine(v=tf.Variable(1.0)), lambda callback: callback.v.assign(5.0)
        )
        assert float(second.v) == 5.0
    elif backend == "torch":
        import torch

        for odd in (torch.eye(2).to_sparse(), torch.ones(2, device="meta")):
            assert begin([Mine(odd=odd)]).uncaptured() != []
        _, second = resumed(
            lambda: Mine(p=torch.nn.Parameter(torch.zeros(2))),
            lambda callback: callback.p.data.add_(1.0),
        )
        assert type(second.p) is torch.nn.Parameter
        assert second.p.tolist() == [1.0, 1.0]
    else:
        pytest.skip("JAX has neither")


def test_callbacks_inside_a_callback_are_restored():
    def make():
        inner = keras.callbacks.EarlyStopping(monitor="loss", patience=3)
        return Mine(inner=inner, several=[keras.callbacks.History(), Meter()])

    def change(callback):
        callback.inner.wait = 2
        callback.several[0].history = {"loss": [1.0]}
        callback.several[1].total = 3.0

    _, second = resumed(make, change)
    assert second.inner.wait == 2
    assert second.several[0].history == {"loss": [1.0]}
    assert second.several[1].total == 3.0


def test_metrics_and_variables_of_a_callback_are_restored():
    def make():
        mean = keras.metrics.Mean()
        average = keras.Variable(np.zeros((20, 20), "float32"))
        teacher = keras.layers.Dense(2)
        teacher.build((None, 3))
        teacher.set_weights([np.ones((3, 2)), np.zeros(2)])
        return Mine(mean=mean, average=average, teacher=teacher, all={"m": mean})

    def change(callback):
        callback.mean.update_state([1.0, 4.0])
        callback.average.assign(np.ones((20, 20)))
        callback.teacher.bias.assign([5.0, 6.0])

    _, second = resumed(make, change)
    assert float(second.mean.result()) == 2.5
    assert keras.ops.convert_to_numpy(second.average).all()
    assert keras.ops.convert_to_numpy(second.teacher.bias).tolist() == [5.0, 6.0]


def test_a_model_that_a_callback_trains_goes_on_with_its_optimizer():
    """Whose variables but two are made with its first step."""
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

    def make():
        model = small_model()
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return Mine(probe=model)

    first, second = resumed(make, lambda callback: callback.probe.fit(x, y, verbose=0))
    for callback in (first, second):
        callback.probe.fit(x, y, verbose=0)
    assert int(second.probe.optimizer.iterations) == 2
    for expected, actual in zip(
        first.probe.optimizer.variables + first.probe.weights,
        second.probe.optimizer.variables + second.probe.weights,
        strict=True,
    ):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(expected), keras.ops.convert_to_numpy(actual)
        )


def test_parts_of_the_trained_model_are_left_to_the_model():
    model = small_model()
    callback = Mine(layer=model.layers[0], optimizer=model.optimizer, whole=model)
    states = begin([callback], model)
    model.layers[0].set_weights([np.ones((2, 1)), np.ones(1)])
    found, arrays = saved(states)
    assert not found[0]["objects"]
    assert not arrays
    assert states.uncaptured() == []


class Stateful:
    """Not plain: it owns a lock, and says itself what its state is."""

    def __init__(self):
        self.total, self.own = 0, object()

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_objects_with_state_dict_are_asked():
    first, second = resumed(
        lambda: Mine(tracker=Stateful()),
        lambda callback: setattr(callback.tracker, "total", 4),
    )
    assert second.tracker.total == 4
    assert begin([first]).uncaptured() == []


def test_tensors_come_back_as_tensors():
    first, second = resumed(
        lambda: Mine(last=None),
        lambda callback: setattr(callback, "last", keras.ops.ones((2, 3))),
    )
    assert type(second.last) is type(first.last)
    assert keras.ops.convert_to_numpy(second.last).tolist() == [[1.0] * 3] * 2


def test_what_cannot_be_captured_is_named_once():
    class Odd(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.numbers = iter(range(3))
            self.file = object()
            self.inside = {"a": [1, (i for i in range(3))]}
            self.function = lambda: None

    callback = Odd()
    states = begin([callback])
    assert states.uncaptured() == [
        "Odd.numbers (range_iterator)",
        "Odd.file (object)",
        "Odd.inside['a'][1] (generator)",
    ]
    callback.function = lambda: 1
    callback.late = object()
    saved(states)
    saved(states)
    assert states.uncaptured()[3:] == ["Odd.function (function)", "Odd.late (object)"]


def test_configuration_is_neither_captured_nor_named():
    callback = Mine(
        function=lambda: None,
        method=small_model,
        kind=dict,
        module=json,
        logger=logging.getLogger("x"),
        lock=threading.Lock(),
        loss=keras.losses.MeanSquaredError(),
        schedule=keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9),
        functions=[lambda: None, print],
        validation_data=object(),
        run=every(steps=3),
    )
    states = begin([callback])
    assert not saved(states)[0][0]["objects"]
    assert states.uncaptured() == []


def test_objects_of_installed_libraries_are_named_once_they_change():
    """They may stand for a connection or a display, and are not put back."""

    def make():
        styled = rich.style.Style(color="red")
        return Mine(console=rich.console.Console(), table=rich.table.Table(), s=styled)

    callback = make()
    states = begin([callback])
    assert not saved(states)[0][0]["objects"]
    assert states.uncaptured() == []
    callback.table.add_column("loss")
    callback.console = rich.console.Console()
    saved(states)
    assert states.uncaptured() == [
        "Mine.console (rich.console.Console)",
        "Mine.table (rich.table.Table)",
    ]
    with pytest.warns(NotExactWarning, match=r"not be restored:\n  Mine\.table .*$"):
        states.restore(*saved(begin([make()])))


class Sampler(rich.style.Style):
    """The user's, of a library's, that draws."""

    def __init__(self):
        self.rng = np.random.default_rng(0)


def test_an_object_of_a_library_that_draws_random_numbers_is_named():
    callback = Mine(sampler=Sampler())
    states = begin([callback])
    callback.sampler.rng.random()
    saved(states)
    assert [name.split()[0] for name in states.uncaptured()] == ["Mine.sampler"]


def test_tensors_that_change_in_place_are_restored_in_place(backend):
    if backend != "torch":
        pytest.skip("tensors of TensorFlow and JAX do not change")
    torch = pytest.importorskip("torch")

    def make():
        return Mine(total=torch.zeros(3))

    first = make()
    states = begin([first])
    first.total += 1
    second = make()
    total = second.total
    begin([second]).restore(*saved(states))
    assert second.total is total
    assert total.tolist() == [1.0, 1.0, 1.0]


def test_very_deep_chains_of_objects_are_followed():
    def make():
        top = meter = Meter()
        for _ in range(1000):
            meter.callback = Linked([])
            meter.callback.inner = Meter()
            meter = meter.callback.inner
        return Mine(top=top, last=meter)

    _, second = resumed(make, lambda callback: setattr(callback.last, "total", 4.0))
    assert second.last.total == 4.0


def test_a_function_from_a_module_may_be_rebound():
    _, second = resumed(
        lambda: Mine(better=np.less),
        lambda callback: setattr(callback, "better", np.greater),
    )
    assert second.better is np.greater


# Contracts with Keras -----------------------------------------------------------------


def test_keras_still_has_the_names_that_we_use(tmp_path):
    """Nothing else tells that a callback went on another way in a newer Keras."""
    bar = vars(keras.utils.Progbar(target=3))
    for name in special.CLOCKS:
        assert name in bar, f"Progbar.{name} is gone: see special"
    assert "progbar" in vars(keras.callbacks.ProgbarLogger())
    logger, _ = csv_logger(tmp_path / "a.csv", append=False)
    for name in ("csv_file", "writer", "keys", "append_header", "sep", "filename"):
        assert name in vars(logger), f"CSVLogger.{name} is gone: see CsvFile"
    assert logger.csv_file.name == str(tmp_path / "a.csv")
    logger.csv_file.close()


# Whether a checkpoint fits ------------------------------------------------------------


def test_equal_callbacks_do_not_differ(tmp_path):
    states = begin(keras_callbacks(tmp_path))
    assert states.differences(saved(states)[0]) == []


def test_the_progress_bar_may_come_and_go():
    plain, bar = [keras.callbacks.History()], keras.callbacks.ProgbarLogger
    with_bar, without = begin([*plain, bar()]), begin(plain)
    assert with_bar.differences(saved(without)[0]) == []
    assert without.differences(saved(with_bar)[0]) == []
    with_bar.restore(*saved(without))
    without.restore(*saved(with_bar))
    begin([bar(), *plain]).restore(*saved(with_bar))


def test_differences_name_the_callbacks_that_differ():
    one = keras.callbacks.EarlyStopping(monitor="loss")
    two = keras.callbacks.ReduceLROnPlateau(monitor="loss")
    states = begin([keras.callbacks.History(), one])
    one.wait += 1
    other = begin([keras.callbacks.History(), two])
    (line,) = other.differences(saved(states)[0])
    assert line == (
        "callbacks: keras.callbacks.EarlyStopping of 'loss', mode 'auto', min_delta 0 "
        "removed; keras.callbacks.ReduceLROnPlateau of 'loss', mode 'auto', min_delta "
        "0.0001 added"
    )
    fewer = begin([keras.callbacks.History()])
    (line,) = fewer.differences(saved(states)[0])
    assert line.startswith("callbacks: keras.callbacks.EarlyStopping of 'loss',")
    assert line.endswith(" removed")
    assert fewer.gone(saved(states)[0]) == set()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("EarlyStopping", {"monitor": "mae"}),
        ("ModelCheckpoint", {"mode": "max"}),
        ("ReduceLROnPlateau", {"min_delta": 0.5}),
    ],
)
def test_what_a_callback_monitors_has_to_be_the_same(tmp_path, name, change):
    """Its best value would be that of something else."""
    place = {"filepath": tmp_path / "m.keras"} if name == "ModelCheckpoint" else {}
    cls, given = getattr(keras.callbacks, name), {"monitor": "loss", "mode": "min"}
    found = saved(begin([cls(**place, **given)]))[0]
    assert begin([cls(**place, **given)]).differences(found) == []
    (line,) = begin([cls(**place, **(given | change))]).differences(found)
    assert "of 'loss', mode 'min', min_delta 0" in line


class Gone(Mine):
    """One that the next process does not have."""


def test_what_had_no_state_may_be_gone():
    """The others are those of before, also where one class is there several times."""
    first = [Mine(a=0), Gone(a=0), Mine(a=0), Mine(a=0)]
    states = begin(first)
    first[0].a, first[2].a, first[3].a = 1, 2, 3
    second = [Mine(a=0) for _ in range(3)]
    found, arrays = saved(states)
    fewer = begin(second)
    assert fewer.differences(found) == []
    assert fewer.gone(found) == {f"{__name__}.Gone"}
    fewer.restore(found, arrays)
    assert [each.a for each in second] == [1, 2, 3]


def test_callbacks_that_come_and_go_leave_others_their_state():
    """In both lists there is a class that the other has not, and the bar goes."""
    first = [Gone(a=0), Mine(a=0), Mine(a=0), keras.callbacks.ProgbarLogger()]
    states = begin(first)
    first[1].a, first[2].a, first[2].other = 1, 2, first[1]
    second = [Mine(a=0), keras.callbacks.History(), Mine(a=0)]
    more = begin(second)
    found = saved(states)
    (line,) = more.differences(found[0])
    assert line == "callbacks: keras.callbacks.History added"
    more.restore(*found)
    assert (second[0].a, second[2].a) == (1, 2)
    assert second[2].other is second[0]


def test_what_shared_state_with_others_may_not_be_gone():
    shared = []
    first = [Gone(a=shared), Mine(b=None)]
    states = begin(first)
    first[1].b = shared
    fewer = begin([Mine(b=None)])
    found, _ = saved(states)
    assert fewer.differences(found) == [f"callbacks: {__name__}.Gone removed"]
    assert fewer.gone(found) == set()


def test_another_order_of_callbacks_is_a_difference():
    first = [Mine(a=1), keras.callbacks.History()]
    states = begin(first)
    second = begin([keras.callbacks.History(), Mine(a=1)])
    (line,) = second.differences(saved(states)[0])
    mine, history = f"{__name__}.Mine", "keras.callbacks.History"
    assert line.endswith(f"in a different order ({mine}, {history})")


def test_a_function_that_is_gone_is_refused_and_nothing_is_touched():
    first = [Mine(a=1), Mine(better=np.less)]
    states = begin(first)
    first[0].a, first[1].better = 2, np.greater
    found, arrays = saved(states)
    text = json.dumps(found).replace("numpy:greater", "numpy:gone_since")
    second = [Mine(a=1), Mine(better=np.less)]
    states = begin(second)
    with pytest.raises(CheckpointMismatchError, match="gone_since"):
        states.restore(json.loads(text), arrays)
    assert second[0].a == 1


def test_a_missing_array_is_refused_and_nothing_is_touched():
    first = [Mine(a=1), Mine(large=None)]
    states = begin(first)
    first[0].a, first[1].large = 2, np.ones(1000)
    second = [Mine(a=1), Mine(large=None)]
    with pytest.raises(CorruptCheckpointError, match=r"callbacks\.Mine\.2\.large"):
        begin(second).restore(saved(states)[0], {})
    assert second[0].a == 1


def test_a_state_dict_that_came_or_went_is_a_difference():
    class Own(keras.callbacks.Callback):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise AssertionError

    found = saved(begin([Own()]))[0]
    del Own.state_dict
    (line,) = begin([Own()]).differences(found)
    assert "Own with state_dict() removed" in line


# Metrics for the manifest -------------------------------------------------------------


def test_monitored_keeps_single_numbers():
    logs = {
        "loss": np.float32(0.5),
        "accuracy": 1,
        "tensor": keras.ops.convert_to_tensor(2.0),
        "nan": float("nan"),
        "infinite": float("inf"),
        "per_class": np.zeros(3),
        "text": "x",
        "nested": {"a": 1.0},
    }
    found = monitored(logs)
    assert set(found) == {"loss", "accuracy", "tensor", "nan", "infinite"}
    assert all(type(value) is float for value in found.values())
    assert (found["loss"], found["accuracy"], found["tensor"]) == (0.5, 1.0, 2.0)
    assert np.isnan(found["nan"])
    assert found["infinite"] == float("inf")
    assert monitored(None) == {}


def test_a_set_that_only_grew_keeps_its_order():
    def grow(callback):
        callback.seen.update([15, 8, 0, *range(1000, 1200, 7)])

    first, second = Mine(seen={3}), Mine(seen={3})
    states = begin([first])
    grow(first)
    begin([second]).restore(*saved(states))
    assert states.uncaptured() == []
    assert list(second.seen) == list(first.seen)


@pytest.mark.parametrize(
    "change",
    [
        lambda free: free.add(5000 + free.pop()),  # as many items
        lambda free: free.difference_update(range(2900)),
    ],
    ids=["popped", "shrunk"],
)
def test_a_set_that_items_were_removed_from_is_named(change):
    """Its iteration and ``pop`` go on elsewhere than in a set that is made anew."""
    callback = Mine(free=set(range(3000)))
    states = begin([callback])
    change(callback.free)
    states.capture({})
    assert states.uncaptured() == ["Mine.free (the order of a set)"]


def test_a_queue_in_a_set_is_named_at_the_second_capture():
    callback = Mine(queue=set())
    states = begin([callback])
    for number in range(2):
        callback.queue.add(number)
        states.capture({})
        callback.queue.remove(number)
    assert states.uncaptured() == ["Mine.queue (the order of a set)"]
