"""``resilient.fit`` is ``model.fit`` that can be run again."""

import functools
import re
import threading

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Do, Interrupt

import resilient
from resilient import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    DataNotResumableError,
    NotSupportedError,
    ResilientError,
    ResilientFit,
    best,
    every,
    keras_internals,
    latest,
)
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


@functools.cache
def alone(epochs=3):
    """What ``model.fit`` leaves: values, History, random state."""
    net = fitting.model()
    history = net.fit(**fitting.arguments(epochs=epochs, callbacks=[Interrupt()]))
    return fitting.values(net), history.history, fitting.random_state()


def assert_as_alone(net, history, epochs=3, random_state=None):
    """The model, its History and the random state are as ``model.fit`` leaves them."""
    expected, logs, state = alone(epochs)
    assert (random_state or fitting.random_state()) == state
    fitting.assert_equal(expected, net)
    assert history.history == logs
    assert history.epoch == list(range(epochs))


def hooks():
    """What of Keras's trainer module ``resilient.fit`` replaces for its duration."""
    module = keras_internals.trainer_module
    return getattr(module, keras_internals.EPOCH_ITERATOR), module.callbacks_module


@pytest.fixture(autouse=True)
def nothing_left_in_keras():
    """Every test leaves Keras's modules as they were."""
    before = hooks()
    yield
    assert hooks() == before


# The same as model.fit ------------------------------------------------------------


@pytest.mark.waits
def test_an_uninterrupted_run_is_model_fit(tmp_path):
    values, *rest = alone()
    net = fitting.model()
    history = fitting.fit(net, tmp_path / "new" / "run", callbacks=[Interrupt()])
    assert_as_alone(net, history)
    assert fitting.steps(tmp_path / "new" / "run") == [6, 12, 18]
    # Keras trains it anew, for `alone` keeps its first run: that one was no exception.
    again, *others = alone.__wrapped__()
    fitting.assert_equal(values, again)
    assert others == rest


def test_arguments_are_in_the_order_of_model_fit(tmp_path):
    x, y = fitting.data()
    seen = [Interrupt(), Interrupt()]
    # batch_size, epochs, verbose, callbacks, validation_split, validation_data,
    # shuffle, class_weight, sample_weight, initial_epoch, steps_per_epoch,
    # validation_steps, validation_batch_size, validation_freq
    positional = [
        (x, y, 4, 3, 0, [each], 0.0, (x, y), False, None, np.ones(22), 1, 2, 1, 3, [3])
        for each in seen
    ]
    plain = fitting.model()
    expected = plain.fit(*positional[0])
    ours = fitting.model()
    actual = resilient.fit(ours, *positional[1], checkpoint_dir=tmp_path)
    assert actual.history == expected.history
    assert list(actual.history) == ["loss", "val_loss"]
    assert len(actual.history["val_loss"]) == 1
    assert actual.epoch == expected.epoch == [1, 2]
    assert seen[1].seen == seen[0].seen == [(1, 0), (1, 1), (2, 0), (2, 1)]
    fitting.assert_equal(plain, ours)


def test_it_returns_the_history_of_the_model(tmp_path):
    net = fitting.model()
    history = fitting.fit(net, tmp_path)
    assert type(history) is keras.callbacks.History
    assert history is net.history
    assert history.params == {"verbose": 0, "epochs": 3, "steps": 6}
    assert [type(loss) for loss in history.history["loss"]] == [float] * 3


def test_logs_of_any_name_are_resumed(tmp_path):
    """Keras takes them."""

    def log():
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update({3: epoch, (1, 2): 0.5})
        )

    fitting.interrupted(tmp_path, epoch=1, batch=None, callbacks=[log()])
    history = fitting.fit(
        fitting.model(), tmp_path, callbacks=[fitting.Interrupt(), log()]
    )
    assert history.history[3] == list(range(len(history.history["loss"])))
    assert set(history.history[1, 2]) == {0.5}


def test_a_history_of_the_users_own_holds_the_whole_run(tmp_path):
    fitting.interrupted(tmp_path, callbacks=[keras.callbacks.History()])
    fitting.other_seed()
    own, net = keras.callbacks.History(), fitting.model(seed=99)
    history = fitting.fit(net, tmp_path, callbacks=[Interrupt(), own], save_freq=4)
    assert history is own
    assert_as_alone(net, own)


def test_a_callback_list_of_the_users_own_is_followed(tmp_path):
    def fit(at, net):
        callbacks = keras.callbacks.CallbackList(
            [Interrupt(*at)], add_history=True, model=net, epochs=3, steps=6
        )
        return fitting.fit(net, tmp_path, callbacks=callbacks, save_freq=4)

    with pytest.raises(fitting.Interrupted):
        fit((1, 2), fitting.model())
    fitting.other_seed()
    net = fitting.model(seed=99)
    assert_as_alone(net, fit((), net))


def test_no_epochs_train_nothing(tmp_path):
    net = fitting.model()
    before = fitting.values(net)
    history = fitting.fit(net, tmp_path, epochs=0)
    assert history.history == {}
    fitting.assert_equal(before[:5], fitting.values(net)[:5])
    assert fitting.steps(tmp_path) == []
    # And it does not stand in the way of a real run.
    net = fitting.model()
    assert_as_alone(net, fitting.fit(net, tmp_path, callbacks=[Interrupt()]))


def test_an_uncompiled_model_gets_keras_own_error(tmp_path):
    net = keras.Sequential(fitting.layers())
    with pytest.raises(ValueError, match=r"must call `compile\(\)`") as plain:
        net.fit(**fitting.arguments())
    with pytest.raises(ValueError, match=r"must call `compile\(\)`") as ours:
        fitting.fit(net, tmp_path)
    assert str(ours.value) == str(plain.value)


def test_an_unknown_argument_is_refused_with_the_one_that_was_meant(tmp_path):
    with pytest.raises(
        TypeError, match=r"no argument `epoch`\.\nDid you mean `epochs`"
    ):
        fitting.fit(fitting.model(), tmp_path, epoch=3)


# Run again ------------------------------------------------------------------------


@pytest.mark.waits
@pytest.mark.parametrize(
    ("epoch", "batch", "trained"),
    [
        (0, 1, 18),
        pytest.param(1, 2, 10, marks=pytest.mark.everywhere),
        pytest.param(1, 5, 7, marks=pytest.mark.everywhere),
        (1, None, 10),
        (2, 1, 6),
        (2, 5, 1),
    ],
)
def test_an_interrupted_run_ends_as_if_left_alone(tmp_path, epoch, batch, trained):
    freq = 20 if trained == 18 else every(steps=4) | every(epochs=1)
    freq = freq if batch != 5 else 1
    fitting.interrupted(tmp_path, epoch, batch, save_freq=freq)
    saved = fitting.steps(tmp_path)
    if saved:
        fitting.other_seed()
    net, follow = fitting.model(seed=99 if saved else 5), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], save_freq=freq)
    assert_as_alone(net, history)
    assert len(follow.seen) == trained
    done = 18 - trained
    assert follow.seen[0] == (done // 6, done % 6)


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_an_epoch_of_fewer_steps_goes_on_in_the_data(tmp_path, shuffle):
    given = {"steps_per_epoch": 3, "shuffle": shuffle, "epochs": 4}  # twice the data
    expected = fitting.model()
    logs = expected.fit(**fitting.arguments(callbacks=[Interrupt()], **given)).history
    state = fitting.random_state()
    for epoch, batch in ((1, 0), (2, 0), (1, 2)):
        directory = tmp_path / f"{epoch}-{batch}"
        freq = "epoch" if not batch else 2
        fitting.interrupted(directory, epoch, batch, save_freq=freq, **given)
        fitting.other_seed()
        net = fitting.model(seed=99)
        history = fitting.fit(net, directory, callbacks=[Interrupt()], **given)
        assert history.history == logs
        assert fitting.random_state() == state
        fitting.assert_equal(expected, net)


@pytest.mark.everywhere
@pytest.mark.waits
def test_a_traced_model_resumes_exactly(tmp_path):
    compiling = {"run_eagerly": False}
    at_once = 1 if keras.backend.backend() == "torch" else 2  # Keras allows no more
    compiling["steps_per_execution"] = at_once
    expected = fitting.model(**compiling)
    logs = expected.fit(**fitting.arguments(callbacks=[Interrupt()])).history
    state = fitting.random_state()
    fitting.interrupted(tmp_path, 1, 3, net=fitting.model(**compiling), save_freq=2)
    fitting.other_seed()
    net, follow = fitting.model(seed=99, **compiling), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], save_freq=2)
    assert fitting.random_state() == state
    fitting.assert_equal(expected, net)
    assert history.history == logs
    assert follow.seen[0] == (1, 1 + at_once)


@pytest.mark.parametrize("built", [True, False])
def test_the_same_model_may_be_fitted_again(tmp_path, built):
    def make():
        return fitting.model(of=lambda: fitting.layers()[0 if built else 1 :])

    expected = make()
    logs = expected.fit(**fitting.arguments(callbacks=[Interrupt()])).history
    net = fitting.interrupted(tmp_path, net=make())
    history = fitting.fit(net, tmp_path, callbacks=[Interrupt()])
    assert history.history == logs
    fitting.assert_equal(expected, net)


@pytest.mark.waits
def test_it_says_once_where_it_resumed(tmp_path, capsys):
    fitting.interrupted(tmp_path, verbose=1)
    often = (
        f"Saving to {tmp_path} every 4 batches; kill it at any time and run it again."
    )
    assert capsys.readouterr().out.splitlines()[0] == often
    fitting.fit(
        fitting.model(), tmp_path, callbacks=[Interrupt()], save_freq=4, verbose=1
    )
    output = capsys.readouterr().out
    line, story, rest = output.split("\n", 2)
    assert line.startswith("Resumed at step 8 (epoch 2, batch 2) from ")
    assert line.endswith("step-00000008")
    told = r"The last attempt failed \(Interrupted\) \d+ s ago at step 8. Restored in "
    assert re.fullmatch(told + r"\d+\.\d\d s\.", story)
    assert "Resumed" not in rest
    assert "Epoch 1/3" not in rest
    # Keras's progress bar goes on: the first batch that it shows is the third of six.
    resumed = rest.split("Epoch 3/3")[0]
    assert "Epoch 2/3" in resumed
    assert "3/6" in resumed
    assert "1/6" not in resumed
    assert "2/6" not in resumed


def test_verbose_0_prints_nothing(tmp_path, capsys):
    fitting.interrupted(tmp_path)
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()], verbose=0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_the_progress_bar_never_goes_back(tmp_path, monkeypatch):
    """One thread moves it, also where Keras trains on meanwhile.

    The first batch's end is held up until the third batch begins.
    """
    moved, threads, ahead = [], set(), threading.Event()
    update = keras.utils.Progbar.update

    def held_up(self, current, values=None, finalize=None):
        here = threading.current_thread()
        if here is not threading.main_thread():
            threads.add(here)
            assert ahead.wait(60)
        moved.append(current)
        update(self, current, values, finalize)

    def begun(batch, logs):
        if batch == 2:
            ahead.set()

    monkeypatch.setattr(keras.utils.Progbar, "update", held_up)
    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=begun)
    told = {"verbose": 1, "callbacks": [callback], "save_freq": "epoch"}
    fitting.fit(fitting.model(), tmp_path, epochs=1, **told)
    assert moved == [*range(1, fitting.STEPS + 1), fitting.STEPS]
    assert len(threads) == (keras.backend.backend() != "tensorflow")


def test_a_new_run_says_nothing_of_a_resume(tmp_path, capsys):
    fitting.fit(fitting.model(), tmp_path, epochs=1, verbose=2)
    assert "esume" not in capsys.readouterr().out


# Which checkpoint -----------------------------------------------------------------


@pytest.mark.waits
def test_with_resume_never_it_starts_anew_and_keeps_what_was_there_in_quarantine(
    tmp_path,
):
    fitting.interrupted(tmp_path)
    net = fitting.model()
    history = fitting.fit(net, tmp_path, callbacks=[Interrupt()], resume="never")
    assert_as_alone(net, history)
    assert fitting.steps(tmp_path) == [6, 12, 18]
    names = {path.name.rpartition("-")[0] for path in tmp_path.glob("quarantine/*")}
    assert names == {"step-00000004", "step-00000008"}


def test_with_resume_must_it_insists_on_a_checkpoint(tmp_path):
    net = fitting.model()
    before = fitting.values(net)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint to resume from"):
        fitting.fit(net, tmp_path, resume="must")
    fitting.assert_equal(before, net)
    fitting.interrupted(tmp_path)
    net = fitting.model(seed=99)
    history = fitting.fit(net, tmp_path, callbacks=[Interrupt()], resume="must")
    assert_as_alone(net, history)


@pytest.mark.waits
def test_a_step_is_resumed_from_and_later_ones_are_superseded(tmp_path):
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()], save_freq=4, keep=9)
    assert fitting.steps(tmp_path) == [4, 8, 12, 16, 18]
    fitting.other_seed()
    net, follow = fitting.model(seed=99), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], resume=8, keep=9)
    assert_as_alone(net, history)
    assert follow.seen[0] == (1, 2)
    assert fitting.steps(tmp_path) == [4, 8, 12, 18]
    rolled_back = [e for e in read_events(tmp_path) if e["event"] == "rolled back"]
    assert [(e["step"], e["discarded"]) for e in rolled_back] == [(8, [12, 16, 18])]
    names = {path.name.rpartition("-")[0] for path in tmp_path.glob("quarantine/*")}
    assert names == {"step-00000012", "step-00000016", "step-00000018"}


@pytest.mark.waits
def test_the_best_is_resumed_from_and_later_ones_are_superseded(tmp_path):
    """By what ``keep`` monitors: here the epoch that ends with the largest loss."""
    keep = latest(9) | best(1, "loss", mode="max")
    given = {"keep": keep, "save_freq": "epoch"}
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()], **given)
    fitting.other_seed()
    net, follow = fitting.model(seed=99), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], resume="best", **given)
    assert_as_alone(net, history)
    losses = history.history["loss"]
    assert losses[0] == max(losses)
    assert follow.seen[0] == (1, 0)
    rolled_back = [e for e in read_events(tmp_path) if e["event"] == "rolled back"]
    assert [(e["step"], e["discarded"]) for e in rolled_back] == [(6, [12, 18])]
    assert fitting.steps(tmp_path) == [6, 12, 18]


@pytest.mark.waits
def test_where_no_checkpoint_has_the_metric_there_is_no_best(tmp_path):
    given = {"keep": best(1, "val_loss"), "resume": "best"}
    with pytest.raises(CheckpointNotFoundError, match="no metrics at all"):
        fitting.fit(fitting.model(), tmp_path, **given)
    fitting.interrupted(tmp_path, epoch=1, batch=2, save_freq="epoch")
    with pytest.raises(CheckpointNotFoundError, match="with only loss") as found:
        fitting.fit(fitting.model(), tmp_path, **given)
    assert "No checkpoint has a value for val_loss" in str(found.value)
    assert fitting.steps(tmp_path) == [6]


@pytest.mark.waits
def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    fitting.interrupted(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="existing steps: 4, 8") as found:
        fitting.fit(fitting.model(), tmp_path, resume=5)
    assert "Received: step 5" in str(found.value)
    assert fitting.steps(tmp_path) == [4, 8]


@pytest.mark.waits
@pytest.mark.parametrize("resume", ["never", 4])
def test_checkpoints_stay_where_the_run_cannot_begin(tmp_path, resume):
    fitting.interrupted(tmp_path)
    given = {
        "never": {"x": keras_internals.ArrayDataAdapter(*fitting.data()), "y": None},
        4: {"callbacks": [Interrupt(), Interrupt()]},
    }
    with pytest.raises((CheckpointMismatchError, DataNotResumableError)):
        fitting.fit(fitting.model(), tmp_path, resume=resume, **given[resume])
    assert fitting.steps(tmp_path) == [4, 8]
    assert not (tmp_path / "quarantine").exists()


# A run that is over ---------------------------------------------------------------


@pytest.mark.waits
def test_a_finished_run_returns_at_once(tmp_path, capsys):
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()])
    fitting.other_seed()
    net, follow = fitting.model(seed=99), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], verbose=1)
    random_state = fitting.random_state()
    assert_as_alone(net, history, random_state=random_state)
    assert follow.seen == []
    assert fitting.steps(tmp_path) == [6, 12, 18]
    assert "Nothing left to train at step 18" in capsys.readouterr().out


class Ending(Interrupt):
    """Keeps what it is told at the end of training."""

    def on_train_end(self, logs=None):
        self._ended = logs


def test_callbacks_of_a_finished_run_are_told_its_end_again(tmp_path):
    first, second = Ending(), Ending()
    fitting.fit(fitting.model(), tmp_path, callbacks=[first])
    fitting.fit(fitting.model(), tmp_path, callbacks=[second])
    assert second.seen == []
    assert second._ended == first._ended
    assert list(first._ended) == ["loss"]


def test_more_epochs_continue_a_finished_run(tmp_path):
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()], epochs=1)
    fitting.other_seed()
    net, follow = fitting.model(seed=99), Interrupt()
    history = fitting.fit(net, tmp_path, callbacks=[follow], epochs=3)
    assert_as_alone(net, history)
    assert follow.seen[0] == (1, 0)


@pytest.mark.waits
@pytest.mark.parametrize("epochs", [0, 1])
def test_fewer_epochs_do_not_train(tmp_path, epochs):
    fitting.interrupted(tmp_path, 1, 4)
    net, follow = fitting.model(seed=99), Interrupt()
    fitting.fit(net, tmp_path, callbacks=[follow], epochs=epochs)
    assert follow.seen == []
    assert int(keras.ops.convert_to_numpy(net.optimizer.iterations.value)) == 8
    assert fitting.steps(tmp_path) == [4, 8]
    # The run is as it was: it goes on where it was interrupted.
    net = fitting.model(seed=99)
    assert_as_alone(net, fitting.fit(net, tmp_path, callbacks=[Interrupt()]))


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    def early():
        return keras.callbacks.EarlyStopping(
            "loss", patience=0, baseline=0.0, restore_best_weights=True
        )

    first, net = early(), fitting.model()
    history = fitting.fit(net, tmp_path, callbacks=[first], epochs=5)
    epochs = len(history.epoch)
    assert epochs < 5
    again, second = fitting.model(seed=99), early()
    resumed = fitting.fit(again, tmp_path, callbacks=[second], epochs=5)
    assert resumed.history == history.history
    assert again.stop_training is True
    assert second.stopped_epoch == first.stopped_epoch == epochs - 1
    fitting.assert_equal(net, again)


def test_a_run_that_stopped_in_mid_epoch_stays_stopped(tmp_path):
    def stop(net):
        return Do(lambda: setattr(net, "stop_training", True))

    plain = fitting.model()
    expected = plain.fit(**fitting.arguments(callbacks=[stop(plain)]))
    ours = fitting.model()
    actual = fitting.fit(ours, tmp_path, callbacks=[stop(ours)])
    fitting.assert_equal(plain, ours)
    assert actual.history == expected.history
    assert fitting.steps(tmp_path) == [6, 9]
    again = fitting.model(seed=99)
    history = fitting.fit(again, tmp_path, callbacks=[stop(again)])
    assert history.history == expected.history
    fitting.assert_equal(plain, again)


@pytest.mark.everywhere
@pytest.mark.parametrize("batch", [None, 2])
def test_a_run_that_stopped_early_says_so_and_goes_on_if_allowed(
    tmp_path, capsys, batch
):
    def stop(net):
        return Do(lambda: setattr(net, "stop_training", True), epoch=1, batch=batch)

    def run(stopping=True, **given):
        net = fitting.model(seed=1 if stopping else 99)
        callback = stop(net) if stopping else Do(lambda: None, epoch=9)
        given = {"epochs": 4, "verbose": 2, "callbacks": [callback], **given}
        return net, fitting.fit(net, tmp_path, **given)

    run()
    assert len(run(stopping=False)[1].epoch) == 2
    out = capsys.readouterr().out
    assert "a callback (model.stop_training) ended it in epoch 2 of 4" in out
    assert 'Pass allow={"stopped"} to train on' in out
    with pytest.warns(
        resilient.NotExactWarning, match="training goes on, with callbacks as they"
    ):
        net, history = run(stopping=False, allow={"stopped"})
    assert len(history.epoch) == 4
    if batch is None:
        alone = fitting.model(seed=1)
        expected = alone.fit(**fitting.arguments(epochs=4, callbacks=[Interrupt()]))
        assert history.history == expected.history
        fitting.assert_equal(alone, net)
    assert len(run(stopping=False, epochs=6)[1].epoch) == 6


# Nothing is left behind in the model or in Keras ----------------------------------


@pytest.mark.waits
def test_a_later_fit_of_the_model_is_keras_own(tmp_path):
    plain = fitting.model()
    plain.fit(**fitting.arguments(callbacks=[Interrupt()]))
    expected = plain.fit(**fitting.arguments(epochs=2, callbacks=[Interrupt()]))

    fitting.interrupted(tmp_path)
    ours, follow = fitting.model(seed=99), Interrupt()
    fitting.fit(ours, tmp_path, callbacks=[Interrupt()])
    assert ours._initial_epoch is None
    actual = ours.fit(**fitting.arguments(epochs=2, callbacks=[follow]))
    assert actual.history == expected.history
    assert len(follow.seen) == 12
    fitting.assert_equal(plain, ours)
    assert fitting.steps(tmp_path) == [8, 12, 18]


@pytest.mark.waits
def test_an_interrupted_model_can_be_fitted_with_keras(tmp_path):
    net = fitting.interrupted(tmp_path)
    assert net._initial_epoch is None
    history = net.fit(**fitting.arguments(epochs=1))
    assert history.epoch == [0]
    assert fitting.steps(tmp_path) == [4, 8]


@pytest.mark.waits
def test_other_fits_inside_a_callback_are_keras_own(tmp_path):
    inner = fitting.arguments(epochs=1, shuffle=False)
    expected = fitting.model().fit(**inner).history
    losses = []

    def nested():
        losses.append(fitting.model().fit(**inner).history)

    fitting.fit(fitting.model(), tmp_path, callbacks=[Do(nested)], save_freq=4)
    assert losses == [expected]
    assert fitting.steps(tmp_path) == [12, 16, 18]


@pytest.mark.waits
def test_a_resilient_fit_inside_a_callback_has_its_own_run(tmp_path):
    nets = []

    def nested():
        nets.append(fitting.model())
        fitting.fit(nets[0], tmp_path / "inner", callbacks=[Interrupt()])

    outer = fitting.model(seed=99)
    fitting.fit(outer, tmp_path / "outer", callbacks=[Do(nested)], save_freq=9)
    fitting.assert_equal(alone()[0], nets[0])
    assert fitting.steps(tmp_path / "inner") == [6, 12, 18]
    assert fitting.steps(tmp_path / "outer") == [9, 18]
    assert outer.history.epoch == [0, 1, 2]


def test_evaluate_and_predict_inside_a_callback_change_nothing(tmp_path):
    x, y = fitting.data()

    def look(net, found):
        found.append(net.evaluate(x, y, verbose=0))
        found.append(net.predict(x, verbose=0).tolist())

    def given(net, found):
        callbacks = [Do(functools.partial(look, net, found), 0, None)]
        return fitting.arguments(callbacks=callbacks, validation_data=(x, y))

    found = [], []
    plain = fitting.model()
    expected = plain.fit(**given(plain, found[0]))
    ours = fitting.model()
    arguments = given(ours, found[1])
    actual = fitting.fit(ours, tmp_path, save_freq=3, **arguments)
    assert found[1] == found[0]
    assert actual.history == expected.history
    fitting.assert_equal(plain, ours)


class Thread(threading.Thread):
    """A thread whose ``join`` raises what its function raised."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self._function, self._error = function, None

    def run(self):
        try:
            self._function()
        except BaseException as error:
            self._error = error

    def join(self, timeout=120):
        super().join(timeout)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


@pytest.mark.waits
def test_fits_in_other_threads_are_keras_own(tmp_path):
    follow = Interrupt()

    def elsewhere():
        other = fitting.model()
        other.fit(**fitting.arguments(shuffle=False, callbacks=[follow]))

    def start_and_wait():
        thread = Thread(elsewhere)
        thread.start()
        thread.join()

    callbacks = [Do(start_and_wait)]
    fitting.fit(fitting.model(), tmp_path, callbacks=callbacks, save_freq=4)
    assert len(follow.seen) == 18
    assert fitting.steps(tmp_path) == [12, 16, 18]


def test_two_runs_in_two_threads_may_end_in_any_order(tmp_path):
    second_is_on, first_is_over = threading.Event(), threading.Event()

    def wait():
        second_is_on.set()
        assert first_is_over.wait(120)

    def fit(name, function):
        net = fitting.model()
        fitting.fit(net, tmp_path / name, callbacks=[Do(function)], save_freq=9)

    thread = Thread(lambda: fit("second", wait))

    def start():
        thread.start()
        assert second_is_on.wait(120)

    fit("first", start)
    first_is_over.set()
    thread.join()
    assert fitting.steps(tmp_path / "first") == [9, 18]
    assert fitting.steps(tmp_path / "second") == [9, 18]


# Models with a fit of their own ---------------------------------------------------


class Doubling(keras.Sequential):
    def fit(self, x, *args, **kwargs):
        return super().fit(2 * x, *args, **kwargs)


def test_a_fit_that_calls_keras_own_is_followed(tmp_path):
    plain = fitting.model(cls=Doubling)
    expected = plain.fit(**fitting.arguments(callbacks=[Interrupt()]))
    fitting.interrupted(tmp_path, net=fitting.model(cls=Doubling))
    net = fitting.model(cls=Doubling, seed=99)
    actual = fitting.fit(net, tmp_path, callbacks=[Interrupt()])
    assert actual.history == expected.history
    fitting.assert_equal(plain, net)


class Elsewhere(keras.Sequential):
    def fit(self, x, y, **kwargs):
        self.train_on_batch(x, y)
        return keras.callbacks.History()


def test_a_fit_that_never_reaches_keras_loop_is_refused(tmp_path):
    with pytest.raises(NotSupportedError, match="never reached Keras's own") as found:
        fitting.fit(fitting.model(cls=Elsewhere), tmp_path)
    assert "Received: Elsewhere.fit" in str(found.value)
    assert "super().fit" in str(found.value)


class Twice(keras.Sequential):
    def fit(self, *args, **kwargs):
        super().fit(*args, **kwargs)
        return super().fit(*args, **kwargs)


def test_a_fit_that_reaches_keras_loop_twice_is_refused(tmp_path):
    with pytest.raises(NotSupportedError, match="only one training loop") as found:
        fitting.fit(fitting.model(cls=Twice), tmp_path, epochs=1)
    assert "Twice.fit reached Keras's loop twice" in str(found.value)


def test_a_fit_of_the_same_model_inside_a_callback_is_refused(tmp_path):
    net = fitting.model()
    nested = Do(lambda: net.fit(**fitting.arguments(epochs=1)))
    with pytest.raises(NotSupportedError, match="only one training loop"):
        fitting.fit(net, tmp_path, callbacks=[nested])


# Arguments that cannot be ---------------------------------------------------------


class NoStateDict:
    def load_state_dict(self, state):
        pass

    def __repr__(self):
        return "NoStateDict()"  # no address: test processes must agree on test ids


WRONG = [
    ({"save_freq": 0}, ValueError),
    ({"save_freq": -1}, ValueError),
    ({"save_freq": True}, TypeError),
    ({"save_freq": 1.5}, TypeError),
    ({"save_freq": None}, TypeError),
    ({"save_freq": "batch"}, ValueError),
    ({"keep": 0}, ValueError),
    ({"keep": True}, TypeError),
    ({"keep": "all"}, TypeError),
    ({"resume": "x"}, ValueError),
    ({"resume": -1}, ValueError),
    ({"resume": True}, ValueError),
    ({"resume": None}, ValueError),
    ({"resume": "best"}, ValueError),
    ({"resume": "best", "keep": best(1, "loss") | best(1, "mae")}, ValueError),
    ({"resume": 1.0}, ValueError),
    ({"on_save_error": "ignore"}, ValueError),
    ({"on_save_error": np.array(["raise", "warn"])}, ValueError),
    ({"on_data_change": "fast"}, ValueError),
    ({"on_data_change": np.zeros(3)}, ValueError),
    ({"replay_data": "yes"}, TypeError),
    ({"stateful": {"mine": NoStateDict()}}, TypeError),
    ({"stateful": {1: NoStateDict()}}, TypeError),
    ({"stateful": [NoStateDict()]}, TypeError),
    ({"stateful": NoStateDict()}, TypeError),
    ({"on_event": "print"}, TypeError),
    ({"checkpoint_dir": ""}, ValueError),
    ({"checkpoint_dir": None}, TypeError),
    ({"checkpoint_dir": 7}, TypeError),
    ({"checkpoint_dir": "s3://"}, ValueError),
    ({"checkpoint_dir": "cache::s3://bucket/run"}, ValueError),
    ({"checkpoint_dir": "s3://bucket/run", "local_dir": "s3://x"}, NotSupportedError),
    ({"keep": best(1, "val_loss"), "save_freq": 4}, ValueError),
    (
        {"keep": latest(2) | best(1, "val_loss"), "save_freq": every(seconds=1)},
        ValueError,
    ),
]


@pytest.mark.parametrize(("given", "error"), WRONG, ids=str)
def test_wrong_arguments_are_refused_before_anything_is_done(
    tmp_path, monkeypatch, given, error
):
    monkeypatch.chdir(tmp_path)
    net, follow = fitting.model(), Interrupt()
    before, state = fitting.values(net), fitting.random_state()
    directory = given.get("checkpoint_dir", "run")
    rest = {k: v for k, v in given.items() if k != "checkpoint_dir"}
    with pytest.raises(error) as found:
        fitting.fit(net, directory, callbacks=[follow], **rest)
    assert_three_parts(found.value)
    assert follow.seen == []
    fitting.assert_equal(before, net)
    assert fitting.random_state() == state
    assert list(tmp_path.iterdir()) == []


def assert_three_parts(error):
    """What is wrong. Received: what came. What to do, unless the first part says it."""
    what, received, rest = str(error).partition("\nReceived: ")
    assert what.endswith(".")
    assert received
    if "must be" not in what:
        assert "\n" in rest
        assert rest.endswith(".")


@pytest.mark.parametrize("wrong", [None, "model", keras.Model, keras.layers.Dense(1)])
def test_what_is_no_model_is_refused(tmp_path, wrong):
    with pytest.raises(TypeError, match=r"trains a keras\.Model") as found:
        fitting.fit(wrong, tmp_path / "run")
    assert_three_parts(found.value)


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(NotADirectoryError) as found:
        fitting.fit(fitting.model(), tmp_path / "run")
    assert_three_parts(found.value)
    assert (tmp_path / "run").read_text() == "mine"


# Events, save, restore ------------------------------------------------------------


@pytest.mark.waits
def test_on_event_gets_what_events_jsonl_records(tmp_path):
    events = []
    fitting.interrupted(tmp_path, on_event=events.append)
    fitting.fit(
        fitting.model(),
        tmp_path,
        callbacks=[Interrupt()],
        save_freq="epoch",
        on_event=events.append,
    )
    assert [event["event"] for event in events] == [
        *("started", "training", "saved", "metrics", "saved", "failed"),
        *("started", "restored", "replayed", "training", "repeated"),
        *("metrics", "saved", "metrics", "saved", "ended"),
    ]
    metrics = [event for event in events if event["event"] == "metrics"]
    assert [(e["step"], e["epoch"], e["batch"]) for e in metrics] == [
        *((6, 1, 0), (12, 2, 0), (18, 3, 0)),
    ]
    assert all({"loss"} <= set(e["logs"]) for e in metrics)
    for start in (event for event in events if event["event"] == "started"):
        assert start["environment"]["keras"] == keras.__version__
        assert start["processes"] == 1
    assert [e["step"] for e in events if e["event"] == "saved"] == [4, 8, 12, 18]
    assert [e["finished"] for e in events if e["event"] == "saved"][-1] is True
    (restored,) = (e for e in events if e["event"] == "restored")
    assert (restored["step"], restored["epoch"], restored["batch"]) == (8, 1, 2)
    assert all(type(event) is dict for event in events)
    assert len({event["attempt"] for event in events}) == 2
    assert list(read_events(tmp_path)) == events


def test_no_value_of_an_environment_variable_gets_into_a_directory(
    tmp_path, monkeypatch
):
    """They hold passwords, and checkpoints are passed on."""
    for name in ("API_TOKEN", "AWS_SECRET_ACCESS_KEY", "RESILIENT_X", "KERAS_X"):
        monkeypatch.setenv(name, "canary-of-the-environment")
    fitting.interrupted(tmp_path)
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()])
    kinds = {event["event"] for event in read_events(tmp_path)}
    assert {"started", "restored", "saved", "failed", "ended"} <= kinds
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events.jsonl", "heartbeat", "run.json"} <= {path.name for path in files}
    for path in files:
        assert b"canary-of-the-environment" not in path.read_bytes(), path


@pytest.mark.waits
def test_goodput_tells_of_all_attempts(tmp_path):
    fitting.interrupted(tmp_path, save_freq=4)
    net = fitting.model()
    run = ResilientFit(net, checkpoint_dir=tmp_path)
    run.fit(**fitting.arguments(callbacks=[Interrupt()]))
    died, ended = run.goodput.attempts
    assert (died.outcome, ended.outcome) == ("failed", "ended")
    assert (ended.restored, ended.step) == (8, 18)
    assert run.goodput.steps == 18
    assert 0 < run.goodput.share < 1


@pytest.mark.parametrize(
    ("resume", "said"), [("never", 1), (4, 1), ("best", 1), ("auto", 0), ("must", 0)]
)
def test_a_supervised_run_that_would_go_in_circles_is_told(
    tmp_path, monkeypatch, caplog, resume, said
):
    monkeypatch.setenv("RESILIENT_HEARTBEAT", str(tmp_path / "heartbeat"))
    keep = best(1, "val_loss")
    ResilientFit(None, checkpoint_dir=tmp_path, keep=keep, resume=resume)
    assert ("every restart by `resilient run` goes back" in caplog.text) == bool(said)


@pytest.mark.waits
def test_save_asks_for_a_checkpoint_after_this_batch(tmp_path):
    net = fitting.model()
    run = ResilientFit(net, checkpoint_dir=tmp_path, save_freq=9, keep=9)
    run.fit(**fitting.arguments(callbacks=[Do(run.save)]))
    assert [checkpoint.step for checkpoint in run.checkpoints] == [9, 18]
    other = ResilientFit(net, checkpoint_dir=tmp_path / "b", save_freq=9, keep=9)
    other.fit(
        **fitting.arguments(callbacks=[Do(other.save, 0, 3), Do(other.save, 1, 5)])
    )
    assert [checkpoint.step for checkpoint in other.checkpoints] == [4, 9, 12, 18]


def test_save_outside_of_fit_is_refused(tmp_path):
    run = ResilientFit(fitting.model(), checkpoint_dir=tmp_path)
    with pytest.raises(ResilientError, match="only while fit is running"):
        run.save()
    run.fit(**fitting.arguments(epochs=1))
    with pytest.raises(ResilientError, match="only while fit is running"):
        run.save()


@pytest.mark.waits
def test_checkpoints_and_latest_tell_what_is_there(tmp_path):
    run = ResilientFit(fitting.model(), checkpoint_dir=tmp_path / "none")
    assert run.checkpoints == []
    assert run.latest is None
    assert not (tmp_path / "none").exists()
    run.fit(**fitting.arguments())
    assert [c.step for c in run.checkpoints] == [6, 12, 18]
    assert run.latest.step == 18
    assert run.latest.finished
    assert [c.finished for c in run.checkpoints] == [False, False, True]
    assert run.latest.metrics == {"loss": run._model.history.history["loss"][-1]}
    assert run.latest.environment["keras"] == keras.__version__


def test_restore_loads_weights_and_optimizer_of_a_step(tmp_path):
    expected = fitting.model()
    expected.fit(**fitting.arguments(epochs=1, callbacks=[Interrupt()]))
    fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt()])
    net = fitting.model(seed=99)
    run = ResilientFit(net, checkpoint_dir=tmp_path)
    random_state = fitting.random_state()
    assert run.restore(6).step == 6
    assert fitting.random_state() == random_state
    weights = len(net.variables) + len(net.optimizer.variables)
    fitting.assert_equal(
        fitting.values(expected)[:weights], fitting.values(net)[:weights]
    )
    assert run.restore().step == 18
    fitting.assert_equal(alone()[0][:weights], fitting.values(net)[:weights])
    # Looking at an old step does not change what fit resumes from.
    run.restore(6)
    assert_as_alone(net, run.fit(**fitting.arguments(callbacks=[Interrupt()])))


def test_restore_of_what_is_not_there_is_refused(tmp_path):
    run = ResilientFit(fitting.model(), checkpoint_dir=tmp_path / "run")
    with pytest.raises(CheckpointNotFoundError):
        run.restore()
    with pytest.raises(CheckpointNotFoundError):
        run.restore(3)
    assert not (tmp_path / "run").exists()
    run.fit(**fitting.arguments(epochs=1))
    with pytest.raises(CheckpointNotFoundError, match="existing steps: 6"):
        run.restore(3)


def test_restore_into_another_or_unbuilt_model_changes_nothing(tmp_path):
    fitting.fit(fitting.model(), tmp_path, epochs=1)
    wider = fitting.model(of=lambda: fitting.layers(width=5))
    before = fitting.values(wider)[:4]
    with pytest.raises(CheckpointMismatchError, match="Nothing was changed") as found:
        ResilientFit(wider, checkpoint_dir=tmp_path).restore()
    assert "(3, 2) float32" in str(found.value)
    assert "(3, 5) float32" in str(found.value)
    fitting.assert_equal(before, fitting.values(wider)[:4])

    unbuilt = fitting.model(of=lambda: fitting.layers()[1:])
    with pytest.raises(CheckpointMismatchError, match="not built yet"):
        ResilientFit(unbuilt, checkpoint_dir=tmp_path).restore()
    assert not unbuilt.built
    unbuilt(fitting.data()[0])
    ResilientFit(unbuilt, checkpoint_dir=tmp_path).restore()


def test_restore_inside_a_callback_goes_on_from_there(tmp_path):
    net = fitting.model()
    run = ResilientFit(net, checkpoint_dir=tmp_path)
    found = []
    run.fit(**fitting.arguments(callbacks=[Do(lambda: found.append(run.restore()))]))
    assert [checkpoint.step for checkpoint in found] == [6]
    assert run.latest.step == 18


class Counter:
    """A user's own object with a state."""

    def __init__(self):
        self.state = {"n": 0, "array": np.zeros(3)}

    def count(self):
        self.state["n"] += 1
        self.state["array"] = self.state["array"] + 0.5

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = state


class Counting(keras.callbacks.Callback):
    def __init__(self, counter):
        super().__init__()
        self._counter = counter

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self._counter.count()


def test_stateful_objects_continue(tmp_path):
    first, second = Counter(), Counter()
    fitting.interrupted(
        tmp_path, callbacks=[Counting(first)], stateful={"counter": first}
    )
    assert first.state["n"] == 8
    fitting.fit(
        fitting.model(),
        tmp_path,
        callbacks=[Interrupt(), Counting(second)],
        stateful={"counter": second},
    )
    assert second.state["n"] == 18
    np.testing.assert_array_equal(second.state["array"], np.full(3, 9.0))


class Unkeepable(Counter):
    def state_dict(self):
        return {"lock": threading.Lock()}


def test_a_state_that_cannot_be_kept_is_refused_by_name(tmp_path):
    with pytest.raises(NotSupportedError, match="'counter' cannot be saved") as found:
        fitting.fit(fitting.model(), tmp_path, stateful={"counter": Unkeepable()})
    assert_three_parts(found.value)
    assert fitting.steps(tmp_path) == []
