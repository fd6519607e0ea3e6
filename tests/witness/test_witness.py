"""Batches that are trained again after a kill repeat bit for bit, or it is said."""

import contextlib
import functools
import re
import signal

import keras
import numpy as np
import pytest
from interrupts import (
    BeforeBatch,
    Counts,
    Flips,
    Reads,
    attempt,
    counting,
    drawing,
    drawn,
    found,
    interrupt,
    left,
    resume,
    rounding,
)
from support.fitting import Interrupt, Interrupted, arguments, data, model, steps

import resilient
from resilient import (
    DataNotResumableError,
    NotExactError,
    NotExactWarning,
    Preempted,
    Rollback,
    best,
    every,
    latest,
)
from resilient.telemetry.events import read_events

BACKEND = keras.backend.backend()

# Whatever is said beyond what a test expects is an error.
pytestmark = [
    pytest.mark.waits,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def only(caught):
    """The text of the one warning of ours."""
    (text,) = (str(w.message) for w in caught if w.category is NotExactWarning)
    return text


def test_batches_that_repeat_are_counted_and_the_line_says_so_once(tmp_path, capfd):
    left(tmp_path)
    resume(tmp_path, verbose=2)
    assert found(tmp_path) == [("repeated", 4)]
    out = capfd.readouterr().out
    assert "The 4 batches after step 5 repeated bit for bit." in out
    assert out.count("repeated") == 1


@pytest.mark.spread
def test_one_batch_is_not_several(tmp_path, capfd):
    left(tmp_path, save_freq=8)
    resume(tmp_path, verbose=2)
    assert found(tmp_path) == [("repeated", 1)]
    out = capfd.readouterr().out
    assert "The 1 batch after step 8 repeated bit for bit." in out


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "save_freq=1"])
@pytest.mark.spread
def test_nothing_to_compare_is_no_proof(tmp_path, capfd, stopped):
    end = (lambda: signal.raise_signal(signal.SIGTERM)) if stopped else interrupt
    with pytest.raises(Preempted) if stopped else contextlib.nullcontext():
        left(tmp_path, (), save_freq=1, callbacks=[BeforeBatch(end)])
    resume(tmp_path, verbose=2, callbacks=[BeforeBatch()])
    out = capfd.readouterr().out
    assert "No batch to compare." in out
    assert found(tmp_path) == []
    assert "repeated" not in out


def batches():
    """Data of unknown length."""
    x, y = data()
    yield from ((x[at : at + 4], y[at : at + 4]) for at in range(0, 22, 4))


def endless():
    while True:
        yield from batches()


def own_list(callbacks, net):
    own = keras.callbacks.CallbackList(callbacks, add_history=True, model=net)
    own.set_params({"epochs": 3, "steps": 6, "verbose": 0})
    return own


def nan():
    x, y = data()
    return {"x": x, "y": np.where(y > 2, np.nan, y)}


GENERATED = {"y": None, "batch_size": None, "shuffle": False}
ADAM = functools.partial(keras.optimizers.Adam, gradient_accumulation_steps=2)
ALIKE = {
    "compiled": {"compiling": {"run_eagerly": False}, "validation_data": data(8)},
    "weights that a callback reads": {"callbacks": [Reads()]},
    "steps per epoch": {"steps_per_epoch": 3, "until": (2, 2)},
    "own callback list": {"wrap": own_list},
}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.spread
def test_a_program_that_repeats_is_no_cause_of_alarm(tmp_path, name):
    given = ALIKE[name]
    left(tmp_path, **given)
    resume(tmp_path, **given | {"until": ()})
    assert found(tmp_path) == [("repeated", 4)]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("source", "given", "until", "count"),
    [
        (batches, {"epochs": 1, "save_freq": 2}, (0, 4), 3),
        (endless, {"steps_per_epoch": 4, "save_freq": 4}, (1, 2), 3),
    ],
    ids=["one epoch", "endless"],
)
@pytest.mark.spread
def test_generators_repeat(tmp_path, source, given, until, count):
    left(tmp_path, until, **GENERATED, **given, x=source())
    resume(tmp_path, **GENERATED | given | {"save_freq": 100}, x=source())
    assert found(tmp_path) == [("repeated", count)]


@pytest.mark.spread
def test_losses_that_are_not_finite_repeat(tmp_path):
    left(tmp_path, **nan())
    resume(tmp_path, **nan())
    assert found(tmp_path) == [("repeated", 4)]


@pytest.mark.spread
def test_weights_that_stand_still_between_updates_repeat(tmp_path):
    left(tmp_path, compiling={"optimizer": ADAM()})
    resume(tmp_path, compiling={"optimizer": ADAM()})
    assert found(tmp_path) == [("repeated", 4)]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras executes one by one there")
def test_batches_of_a_step_of_several_are_counted(tmp_path):
    several = {"compiling": {"run_eagerly": False, "steps_per_execution": 4}}
    left(tmp_path, (1, 3), **several, save_freq=4)
    resume(tmp_path, **several)
    assert found(tmp_path) == [("repeated", 6)]


@pytest.mark.spread
def test_losses_that_a_thread_of_keras_reads_repeat(tmp_path):
    """With no callback that needs them at the end of a batch."""
    left(tmp_path, (), callbacks=[BeforeBatch(interrupt)], watched=False)
    resume(tmp_path, callbacks=[BeforeBatch()], watched=False)
    ((name, count),) = found(tmp_path)
    assert name == "repeated"
    assert count in (3, 4)  # the last loss may have been read too late


def numbered(callbacks, net):
    """What the model logs has numbers for names."""
    plain = net.train_step

    def train_step(*args):
        logs, *state = plain(*args) if BACKEND == "jax" else (plain(*args),)
        named = dict(enumerate(logs.values()))
        return (named, *state) if state else named

    net.train_step = train_step
    return callbacks


def test_logs_under_names_that_are_no_text_are_kept(tmp_path):
    left(tmp_path / "killed", wrap=numbered)
    resumed = resume(tmp_path / "killed", wrap=numbered)
    # The last batch left its loss alone, and none of these is called one.
    assert found(tmp_path / "killed") == [("repeated", 3)]
    whole = attempt(tmp_path / "whole", seed=5, wrap=numbered)
    assert 0 in whole.history
    assert resumed.history == whole.history


@pytest.mark.parametrize(
    "lossy", [counting, pytest.param(drawing, marks=pytest.mark.spread)]
)
def test_state_of_a_loss_that_is_lost_is_named_at_the_first_batch(tmp_path, lossy):
    left(tmp_path, compiling=lossy())
    with pytest.warns(NotExactWarning) as caught:
        resume(tmp_path, compiling=lossy())
    text = only(caught)
    assert "the resumed run does not repeat the killed one: the loss differs" in text
    assert "batch 1 of the 4 that are trained again" in text
    assert "is not saved" in text
    assert "`resilient prove`" in text
    assert found(tmp_path) == [("not repeated", 6)]


@pytest.mark.spread
def test_a_number_of_a_callback_that_is_lost_is_named_where_it_shows(tmp_path):
    left(tmp_path, callbacks=[Counts()])
    with pytest.warns(NotExactWarning) as caught:
        resume(tmp_path, callbacks=[Counts()])
    assert "batch 2 of the 4" in only(caught)
    assert found(tmp_path) == [("not repeated", 7)]


def test_one_flipped_bit_of_a_weight_is_named(tmp_path):
    left(tmp_path, callbacks=[Flips(False)])
    with pytest.warns(NotExactWarning) as caught:
        resume(tmp_path, callbacks=[Flips(True)])
    assert re.search("batch [12] of the 4", only(caught))  # leaves of a digest rotate


@pytest.mark.spread
def test_other_data_is_a_change_of_the_data(tmp_path):
    """On TensorFlow Python sees no batch, only what comes of it."""
    left(tmp_path, **drawn())
    if BACKEND == "tensorflow":
        with pytest.warns(NotExactWarning) as caught:
            resume(tmp_path, **drawn())
        assert "is not saved" in only(caught)
    else:
        with pytest.raises(DataNotResumableError) as error:
            resume(tmp_path, **drawn())
        assert "Other data is trained" in error.value.problem
        assert error.value.received == "batch 2 of the 4 that are trained again"
    with pytest.warns(NotExactWarning) as caught:
        resume(tmp_path, **drawn(), on_data_change="warn")
    if BACKEND != "tensorflow":
        assert "training continues with data that is not as before" in only(caught)
    assert {step for _, step in found(tmp_path)} == {7}


def test_asked_to_raise_it_ends_before_anything_is_saved_over(tmp_path):
    given = {"save_freq": 1, "keep": 1, "on_inexact": "raise"}
    left(tmp_path, compiling=counting())
    for _ in range(2):  # the second time just as well
        with pytest.raises(NotExactError, match="`resilient prove`") as error:
            resume(tmp_path, compiling=counting(), **given)
        assert "batch 1 of the " in error.value.received
        assert steps(tmp_path) == [5]


@pytest.mark.spread
def test_arithmetic_that_does_not_repeat_is_said_once_and_differently(tmp_path):
    given = {"until": (1, 3), "save_freq": 7}
    left(tmp_path, **given, compiling=rounding(0))
    with pytest.warns(NotExactWarning, match="is not saved"):
        resume(tmp_path, compiling=rounding(0.1), until=(1, 3))
    with pytest.warns(NotExactWarning) as caught:
        resume(tmp_path, compiling=rounding(4e-6), until=(1, 3))
    text = only(caught)
    assert "of itself" in text
    assert "batch 1 of the 3 that are trained again" in text
    assert "the arithmetic does not repeat, it seems" in text
    assert "resilient.deterministic()" in text
    resume(tmp_path, compiling=rounding(2e-6))  # says nothing
    assert found(tmp_path) == 3 * [("not repeated", 8)]


@pytest.mark.spread
def test_a_second_and_a_third_kill_keep_the_evidence(tmp_path):
    left(tmp_path, compiling=counting())
    for until in ((1, 0), (1, 1), ()):
        with pytest.warns(NotExactWarning) as caught:
            resume(tmp_path, compiling=counting(), until=until)
        assert "batch 1 of the " in only(caught)


@pytest.mark.spread
def test_kills_amid_what_is_compared_leave_it_to_the_next_resume(tmp_path):
    left(tmp_path)
    for until in ((0, 5), (1, 0), (1, 4)):  # before any new save
        resume(tmp_path, until=until)
    assert found(tmp_path) == [("repeated", 4)]
    resume(tmp_path)
    assert found(tmp_path)[1:] == [("repeated", 6)]


@pytest.mark.spread
def test_words_of_the_old_course_do_not_alarm_once_a_difference_is_known(tmp_path):
    """A number was lost once, and the run went on from there."""
    left(tmp_path, callbacks=[Flips(False)])
    with pytest.warns(NotExactWarning):
        resume(tmp_path, callbacks=[Flips(True)], until=(1, 1), save_freq=7)
    assert steps(tmp_path)[-1] == 7
    resume(tmp_path, callbacks=[Flips(False)])
    assert found(tmp_path)[1:] == [("repeated", 1)]


OTHERS = {
    "newest step": {"resume": 8},
    "older step": {"resume": 4},
    "best": {"resume": "best", "keep": best(1, "loss") | latest(9)},
    "never": {"resume": "never"},
    "allow": {"batch_size": 2, "allow": {"batch_size"}},
}


@pytest.mark.filterwarnings("ignore::resilient.NotExactWarning")  # of `allow`
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.spread
def test_only_a_true_resume_is_compared(tmp_path, name):
    often = every(steps=4) | every(epochs=1)
    left(tmp_path, compiling=counting(), save_freq=often, keep=latest(9))
    given = {"keep": latest(9), "save_freq": often} | OTHERS[name]
    resume(tmp_path, compiling=counting(), **given, until=(1, 4))
    assert found(tmp_path) == []
    if name == "older step":  # it is one from here on
        with pytest.warns(NotExactWarning, match="batch 1 of the 3"):
            resume(tmp_path, compiling=counting())


@pytest.mark.spread
def test_batches_after_a_rollback_are_not_compared(tmp_path):
    x, y = data(60)
    y[36] = np.nan
    given = {"x": x, "y": y, "shuffle": False, "epochs": 1, "save_freq": 2}
    back = Rollback(steps=3, skip=5)
    resume(tmp_path, **given, on_nan=back, compiling=counting())
    assert found(tmp_path) == []
    assert any(read_events(tmp_path, having=["rolled back"]))


def by_object(net, place, callbacks, **options):
    ours = resilient.ResilientFit(net, checkpoint_dir=place, **options)
    ours.fit(**arguments(callbacks=callbacks))


def by_block(net, place, callbacks, **options):
    with resilient.enabled(place, **options):
        net.fit(**arguments(callbacks=callbacks))


def by_callback(net, place, callbacks, **options):
    ours = resilient.BackupAndRestore(place, **options)
    net.fit(**arguments(callbacks=[*callbacks, ours]))


@pytest.mark.parametrize("form", [by_object, by_block, by_callback])
@pytest.mark.spread
def test_each_form_of_fit_raises_where_it_is_to(tmp_path, form):
    given = {"save_freq": 5, "on_inexact": "raise"}
    with pytest.raises(Interrupted):
        form(model(**counting()), tmp_path, [Interrupt(1, 2)], **given)
    with pytest.raises(NotExactError, match="batch 1 of the 4"):
        form(model(**counting()), tmp_path, [Interrupt()], **given)
    with pytest.raises(ValueError, match="`on_inexact` must be"):
        form(model(), tmp_path / "bad", [], on_inexact="ignore")


def is_gone(path):
    path.unlink()


def is_cut(path):
    path.write_bytes(path.read_bytes()[:64])


def is_a_directory(path):
    path.unlink()
    path.mkdir()


def is_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def is_read_only(path):
    path.chmod(0o400)


@pytest.mark.parametrize(
    ("happened", "count"),
    [(is_gone, 0), (is_cut, 0), (is_a_directory, 0), (is_a_link, 0), (is_read_only, 1)],
)
@pytest.mark.spread
def test_what_happens_to_the_file_costs_the_proof_at_most(tmp_path, happened, count):
    left(tmp_path)
    happened(tmp_path / "witness")
    assert resume(tmp_path).epoch == [0, 1, 2]
    assert found(tmp_path) == count * [("repeated", 4)]
