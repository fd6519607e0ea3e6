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
from resilient import CheckpointMismatchError, CheckpointReadError, NotSupportedError

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
        return told, fitting.values(first) + fitting.values(second)

    told, values = program()
    assert names(tmp_path) == ["001-sequential", "002-sequential", "003-sequential"]
    assert all(len(seen) == fitting.STEPS for _, seen in told)
    state = fitting.random_state()
    fitting.other_seed()
    again, same = program()
    assert fitting.random_state() == state
    assert [history for history, _ in again] == [history for history, _ in told]
    assert [seen for _, seen in again] == [[], [], []]
    for old, new in zip(values, same, strict=True):
        np.testing.assert_array_equal(old, new)


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


def skipping(directory, skip):
    """Two phases, of which the program may find the first done."""
    with resilient.enabled(directory):
        if not skip:
            fit(fitting.model(seed=1))
        fit(fitting.model(seed=2))


def test_a_call_that_was_skipped_is_known_by_its_line(tmp_path):
    skipping(tmp_path, skip=False)
    with pytest.raises(CheckpointMismatchError, match="another line than") as raised:
        skipping(tmp_path, skip=True)
    assert "fit(fitting.model(seed=2))" in str(raised.value)
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
            CheckpointMismatchError, match="by call 1 before it, and then by no"
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
        pytest.raises(CheckpointMismatchError, match="another call began with"),
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
    assert "model.fit was called in another thread" in found[0]
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
    assert b"model.fit was called in a forked child" in os.read(receive, 4096)


def test_the_file_that_knows_the_order(tmp_path):
    net = fitting.model()
    with resilient.enabled(tmp_path):
        fit(net)
    path = tmp_path / "fits.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"program": "other.py"}))
    refused = pytest.raises(CheckpointMismatchError, match="Another program")
    with resilient.enabled(tmp_path), refused:
        fit(fitting.model())
    for text in ("", "[" * 10_000, json.dumps(said | {"calls": [{"model": 3}]})):
        path.write_text(text)
        refused = pytest.raises(CheckpointReadError, match="cannot be read")
        with resilient.enabled(tmp_path), refused:
            fit(fitting.model())
    with resilient.enabled(tmp_path, resume="never"):
        assert len(fit(fitting.model())[1]) == fitting.STEPS


def test_two_processes_of_one_command_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RESILIENT_HEARTBEAT", str(tmp_path / "launch-1" / "heartbeat"))
    with resilient.enabled(tmp_path / "runs"):
        fit(fitting.model())
    path = tmp_path / "runs" / "fits.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"process": 1}))
    refused = pytest.raises(NotSupportedError, match="Two processes of one command")
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
    ],
)
def test_wrong_options(tmp_path, options, error):
    refused = pytest.raises(error, match=next(iter(options)))
    with refused, resilient.enabled(tmp_path, **options):
        raise AssertionError
    assert not list(tmp_path.iterdir())


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
