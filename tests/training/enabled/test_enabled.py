"""``resilient.enabled``: each ``model.fit`` has a directory, and finds it again."""

import json
import os
import threading

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Do, Interrupt, Interrupted

import resilient
from resilient import (
    CheckpointMismatchError,
    CheckpointReadError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.objects.restore import plan
from resilient.objects.tree import Tree
from resilient.training.enabled import callback, calls

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def fit(net, **given):
    """``model.fit``; the batches that it trained."""
    seen = Interrupt()
    history = net.fit(**fitting.arguments(epochs=1, callbacks=[seen], **given))
    return history.history, seen.seen


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def test_fits_that_had_finished_return_at_once(tmp_path):
    def program():
        first, second = fitting.model(), fitting.model(optimizer="sgd")
        with resilient.enabled(tmp_path):
            told = [fit(first), fit(first), fit(second)]
        modes = [getattr(layer, "training", None) for layer in first._flatten_layers()]
        return told, modes, fitting.values(first) + fitting.values(second)

    told, modes, values = program()
    assert names(tmp_path) == ["001-sequential", "002-sequential", "003-sequential"]
    assert all(len(seen) == fitting.STEPS for _, seen in told)
    state = fitting.random_state()
    fitting.other_seed()
    again, same_modes, same = program()
    assert fitting.random_state() == state
    assert modes == same_modes
    assert [history for history, _ in again] == [history for history, _ in told]
    assert [seen for _, seen in again] == [[], [], []]
    for old, new in zip(values, same, strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_damaged_copy_of_a_file_that_a_fit_wrote_is_an_error(tmp_path):
    best, runs = tmp_path / "best.weights.h5", tmp_path / "runs"

    def program():
        written = keras.callbacks.ModelCheckpoint(best, save_weights_only=True)
        with resilient.enabled(runs, save_freq="epoch", keep=1):
            net = fitting.model()
            net.fit(**fitting.arguments(epochs=1, callbacks=[written]))

    program()
    content = best.read_bytes()
    best.write_bytes(b"of another fit")
    program()
    assert best.read_bytes() == content
    best.write_bytes(b"of another fit")
    last = max(runs.glob("001-*/step-*/variables/**/*"), key=lambda p: p.stat().st_size)
    stored = bytearray(last.read_bytes())
    stored[len(stored) // 2] ^= 1
    last.write_bytes(stored)
    with pytest.raises(CorruptCheckpointError, match="No checkpoint in this directory"):
        program()
    assert best.read_bytes() == b"of another fit"


class Finds(keras.callbacks.Callback):
    """Keeps what it found on the model, as code behind the fit may read it."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.best_epoch = epoch


@pytest.mark.parametrize("eager", [True, False])
def test_what_a_callback_leaves_on_the_model_is_there_or_named(
    tmp_path, backend, eager
):
    def program():
        net = fitting.model(run_eagerly=eager)
        with resilient.enabled(tmp_path):
            net.fit(**fitting.arguments(epochs=2, callbacks=[Finds()]))
        return getattr(net, "best_epoch", None)

    if eager or backend == "torch":
        assert program() == 1
        assert program() == 1
    else:
        with pytest.warns(resilient.NotExactWarning, match="best_epoch"):
            assert program() == 1
        assert program() is None


def test_a_checkpoint_adds_attributes_and_replaces_none():
    class Own(keras.Sequential):
        counted = 0

        def count(self):
            self.counted += 1

    net = Own(name="own")
    net.weights_of_classes = [1]
    tree = Tree({}, {"own": net})
    names = ("fit", "_layers", "weights_of_classes", "stop_training", "mine")
    for name in (*names, "counted", "count", "predict_function", "compiled", "name"):
        there = getattr(net, name, None)
        entries = {"own": {"attributes": {name: 3}}, "other": {"attributes": {}}}
        plan(tree, entries, {})()
        free = name in ("mine", "counted", "weights_of_classes")
        assert getattr(net, name, None) == (3 if free else there)
    assert callable(net.count)
    assert callable(net.fit)


def test_an_interrupted_fit_goes_on(tmp_path):
    expected = fitting.model()
    history = expected.fit(**fitting.arguments(callbacks=[Interrupt()]))
    with pytest.raises(Interrupted), resilient.enabled(tmp_path, save_freq=2):
        fitting.model().fit(**fitting.arguments(callbacks=[Interrupt(1, 3)]))
    seen, net = Interrupt(), fitting.model(seed=6)
    with resilient.enabled(tmp_path):
        resumed = net.fit(**fitting.arguments(callbacks=[seen]))
    assert seen.seen
    assert seen.seen[0] > (0, 1)
    assert resumed.history == history.history
    fitting.assert_equal(expected, net)


def test_a_call_that_is_not_made_again_is_an_error(tmp_path):
    """A program that remembers what it has begun would never resume it."""

    def sweep(calls, *kill):
        with resilient.enabled(tmp_path, save_freq=2):
            for n in range(calls):
                stop = Interrupt(*kill) if n == 2 else Interrupt()
                fitting.model().fit(**fitting.arguments(callbacks=[stop]))

    with pytest.raises(Interrupted):
        sweep(3, 1, 3)
    for made in (0, 2):
        with pytest.raises(CheckpointMismatchError, match=r"call 3, saved in .*003-"):
            sweep(made)
    sweep(3)
    sweep(2)  # all had ended


def test_a_call_whose_error_the_program_caught_has_ended(tmp_path):
    def program(*, catch, calls=2):
        with resilient.enabled(tmp_path):
            for n in range(calls):
                stop = Interrupt(0, 1) if n == 1 else Interrupt()
                try:
                    fitting.model().fit(**fitting.arguments(callbacks=[stop]))
                except Interrupted:
                    if not catch:
                        raise

    with pytest.raises(Interrupted):
        program(catch=False)
    with pytest.raises(CheckpointMismatchError, match="call 2"):
        program(catch=True, calls=1)
    program(catch=True)
    program(catch=True, calls=1)


def test_what_is_left_out(tmp_path):
    net, inner = fitting.model(), fitting.model()
    with resilient.enabled(tmp_path / "runs"):
        with resilient.disabled():
            fit(net)
        fitting.fit(net, tmp_path / "own", epochs=1)  # keeps its directory
        do = Do(lambda: fit(inner), epoch=0, batch=1)
        net.fit(**fitting.arguments(epochs=1, callbacks=[do]))
        with resilient.Run(checkpoint_dir=tmp_path / "loop", model=net) as run:
            fit(inner)
            run.advance()
    fit(net)
    assert names(tmp_path / "runs") == ["001-sequential"]
    assert fitting.steps(tmp_path / "own") == [fitting.STEPS]


def test_the_innermost_wins(tmp_path):
    with resilient.enabled(tmp_path / "a"):
        with resilient.enabled(tmp_path / "b"):
            fit(fitting.model())
        fit(fitting.model())
    assert names(tmp_path / "a") == names(tmp_path / "b") == ["001-sequential"]


def test_disabled_within_enabled_within_disabled(tmp_path):
    with resilient.disabled(), resilient.enabled(tmp_path):
        with resilient.disabled():
            pass
        fit(fitting.model())
    assert names(tmp_path) == ["001-sequential"]


def test_what_another_library_puts_in_the_place_of_fit(tmp_path, monkeypatch):
    before = keras.Model.fit
    calls = []

    def logged(self, **given):
        calls.append(given)
        return before(self, **given)

    with resilient.enabled(tmp_path / "a"):
        assert keras.Model.fit is before
        monkeypatch.setattr(keras.Model, "fit", logged)
        fit(fitting.model())
    with resilient.enabled(tmp_path / "b"):
        fit(fitting.model())
        monkeypatch.setattr(keras.Model, "fit", before)
        fit(fitting.model())
    assert names(tmp_path / "a") == ["001-sequential"]
    assert names(tmp_path / "b") == ["001-sequential", "002-sequential"]
    assert len(calls) == 2


def skipping(directory, skip):
    """Two phases, of which the program may find the first done."""
    with resilient.enabled(directory):
        if not skip:
            fit(fitting.model(seed=1))
        fit(fitting.model(seed=2))


def test_a_call_that_was_skipped_is_known_by_its_line(tmp_path):
    skipping(tmp_path, skip=False)
    with pytest.raises(
        CheckpointMismatchError,
        match=r"lines: those of call 2, .*fit\(fitting.model\(seed=2\)\)",
    ):
        skipping(tmp_path, skip=True)
    skipping(tmp_path, skip=False)


def test_a_model_that_was_trained_by_another_call_is_an_error(tmp_path):
    net = fitting.model()
    with resilient.enabled(tmp_path):
        fit(net)
        fit(fitting.model())
    net = fitting.model()
    with resilient.enabled(tmp_path):
        fit(net)
        with pytest.raises(
            CheckpointMismatchError, match="by: call 1 now, no call before"
        ):
            fit(net)


def test_a_call_that_was_skipped_is_known_by_its_weights(tmp_path):
    """A program that loads what it saved, and goes on with the second call."""
    net = fitting.model()
    with resilient.enabled(tmp_path):
        for _ in range(2):
            weights = net.get_weights()
            fit(net)  # one line, which tells nothing
    net = fitting.model(seed=9)
    net.set_weights(weights)
    with (
        resilient.enabled(tmp_path),
        pytest.raises(CheckpointMismatchError, match="weights: those of call 2"),
    ):
        fit(net)


def test_a_sweep_whose_values_were_changed_is_an_error(tmp_path):
    def sweep(*rates):
        with resilient.enabled(tmp_path):
            for rate in rates:
                fit(fitting.model(optimizer=keras.optimizers.Adam(rate)))

    sweep(0.1, 0.2)
    with pytest.raises(CheckpointMismatchError, match="Call 1 of fit is not"):
        sweep(0.2)


def test_other_weights_are_said_once_and_refused_in_one_process(tmp_path, caplog):
    """An ensemble, of which the program skips what it has: no more tells it apart."""

    def ensemble(*seeds):
        with resilient.enabled(tmp_path):
            for seed in seeds:
                fit(fitting.model(seed=seed))

    net = fitting.model(seed=1)
    with pytest.raises(Interrupted), resilient.enabled(tmp_path, save_freq=2):
        net.fit(**fitting.arguments(epochs=1, callbacks=[Interrupt(0, 3)]))
    for number, seeds in enumerate([(2, 3), (4, 5)], 1):  # interrupted, and finished
        calls.ended.clear()  # another process
        ensemble(*seeds)
        said = [each for each in caplog.messages if "different weights" in each]
        assert len(said) == number
        assert said[-1].startswith("Call 1 of fit began with different weights")
    with pytest.raises(CheckpointMismatchError, match="not those of the earlier block"):
        ensemble(3)


def test_a_model_that_is_not_compiled(tmp_path):
    net = keras.Sequential(fitting.layers())
    with resilient.enabled(tmp_path), pytest.raises(ValueError, match="compile"):
        fit(net)


def test_other_threads_and_children_are_an_error(tmp_path):
    net, found = fitting.model(), []

    def call():
        with pytest.raises(NotSupportedError) as raised:
            fit(net)
        found.append(str(raised.value))

    with resilient.enabled(tmp_path):
        fit(net)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert "model.fit was called in several threads or" in found[0]
    assert names(tmp_path) == ["001-sequential"]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_is_an_error(tmp_path):
    net = fitting.model()
    receive, send = os.pipe()
    with resilient.enabled(tmp_path):
        child = os.fork()
        if not child:
            try:
                fit(net)
            except NotSupportedError as error:
                os.write(send, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
    assert b"fit was called in several threads or" in os.read(receive, 4096)


def test_the_file_that_knows_the_order(tmp_path):
    net = fitting.model()
    with resilient.enabled(tmp_path):
        fit(net)
    path = tmp_path / "fits.json"
    said = json.loads(path.read_text())
    other = said["calls"][0] | {"program": "other.py"}
    path.write_text(json.dumps(said | {"calls": [other]}))
    refused = pytest.raises(CheckpointMismatchError, match=r"now, other\.py before")
    with resilient.enabled(tmp_path), refused:
        fit(fitting.model())
    for text in ("", "[" * 10_000, json.dumps(said | {"calls": 3})):
        path.write_text(text)
        refused = pytest.raises(CheckpointReadError, match="cannot be read")
        with resilient.enabled(tmp_path), refused:
            fit(fitting.model())
    path.unlink()
    with resilient.enabled(tmp_path):
        assert fit(fitting.model())[1] == []


def test_two_processes_of_one_command_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RESILIENT_HEARTBEAT", str(tmp_path / "launch-1" / "heartbeat"))
    with resilient.enabled(tmp_path / "runs"):
        fit(fitting.model())
    path = tmp_path / "runs" / "fits.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"process": 1}))
    refused = pytest.raises(
        NotSupportedError, match=r"processes of one program.*\n.*\n.*joblib"
    )
    with resilient.enabled(tmp_path / "runs"), refused:
        fit(fitting.model())
    monkeypatch.setenv("RESILIENT_HEARTBEAT", str(tmp_path / "launch-2" / "heartbeat"))
    with resilient.enabled(tmp_path / "runs"):
        assert fit(fitting.model())[1] == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"checkpoint_dir": "x"}, TypeError),
        ({"save_frequency": 3}, TypeError),
        ({"save_freq": 0}, ValueError),
        ({"resume": 3}, ValueError),
        ({"resume": "must"}, ValueError),
        ({"resume": "never"}, ValueError),
    ],
)
def test_wrong_options(tmp_path, options, error):
    refused = pytest.raises(error, match=next(iter(options)))
    with refused, resilient.enabled(tmp_path, **options):
        raise AssertionError
    assert not list(tmp_path.iterdir())


def test_the_callback_takes_no_address():
    with pytest.raises(NotSupportedError, match="must be a local path"):
        resilient.BackupAndRestore("s3://bucket/run")


def test_the_callback_deletes_what_it_saved(tmp_path):
    directory = tmp_path / "[backup]"  # no pattern
    expected = fitting.model()
    expected.fit(**fitting.arguments())
    net = fitting.model()
    for killed in (True, False):
        backup = resilient.BackupAndRestore(directory, save_freq=2)
        callbacks = [backup, Interrupt(1, 3)] if killed else [backup, Interrupt()]
        try:
            net.fit(**fitting.arguments(callbacks=callbacks))
            assert not killed
        except Interrupted:
            assert fitting.steps(directory)
            net = fitting.model(seed=8)
    assert list(tmp_path.iterdir()) == []
    fitting.assert_equal(expected, net)


@pytest.mark.parametrize("delete", [True, False])
def test_several_fits_with_one_backup_dir(tmp_path, delete):
    """A restart takes no checkpoint of one for one of another."""
    expected = fitting.model()
    for _ in range(3):
        expected.fit(**fitting.arguments(epochs=1))

    def program(directory, *at):
        net = fitting.model()
        callback.finished.clear()  # another process
        for n in range(3):
            backup = resilient.BackupAndRestore(directory, 2, delete_checkpoint=delete)
            stop = Interrupt(*at) if n == 1 else Interrupt()
            net.fit(**fitting.arguments(epochs=1, callbacks=[backup, stop]))
        return net

    with pytest.raises(Interrupted):
        program(tmp_path / "backup", 0, 3)
    fitting.assert_equal(expected, program(tmp_path / "backup"))
    kept = ["backup", "backup.fit-2", "backup.fit-3"]
    assert names(tmp_path) == ([] if delete else kept)


def test_the_callback_deletes_nothing_else(tmp_path, caplog):
    directory, link = tmp_path / "backup", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(tmp_path / "linked", target_is_directory=True)
    (tmp_path / "linked").mkdir()
    (directory / "mine.txt").touch()
    for each in (directory, link):
        fit_with(resilient.BackupAndRestore(each))
        assert fitting.steps(each) == [fitting.STEPS]
    assert caplog.text.count("is not deleted: it is a link, or holds other") == 2


def fit_with(*callbacks):
    net = fitting.model()
    net.fit(**fitting.arguments(epochs=1, callbacks=list(callbacks)))


def test_a_fit_that_is_saved_already_is_not_saved_twice(tmp_path):
    fit_with(*(resilient.BackupAndRestore(tmp_path / name) for name in "ab"))
    own = resilient.BackupAndRestore(tmp_path / "c")
    fitting.fit(fitting.model(), tmp_path / "run", epochs=1, callbacks=[own])
    assert names(tmp_path) == ["run"]


def test_the_callback_where_it_has_no_control(tmp_path):
    class Own(keras.Sequential):
        def fit(self, *args, callbacks=None, **kwargs):
            callbacks = keras.callbacks.CallbackList(callbacks, model=self)
            callbacks.on_train_begin()

    backup = resilient.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(NotSupportedError, match="cannot be backed up"):
        Own().fit(callbacks=[backup])
    with pytest.raises(ValueError, match="save_freq"):
        resilient.BackupAndRestore(tmp_path / "backup", save_freq=0)
    assert list(tmp_path.iterdir()) == []
