"""An error in fit: it goes on its way, and says where the run will go on."""

import traceback
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting
from support.checkpoint_samples import cannot_be_read
from support.fitting import Do, Interrupt, Interrupted

import resilient
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


class Broken(Exception):
    """What the user's own code raises."""


def fail():
    raise Broken("corrupt image")


def failed(directory):
    return [event for event in read_events(directory) if event["event"] == "failed"]


def notes(error):
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.waits
def test_the_error_is_the_users_with_a_note(tmp_path):
    with pytest.raises(Broken, match=r"^corrupt image\n") as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail)], save_freq=4)
    assert notes(error.value) == (
        "keras-resilient: training failed after step 8 (epoch 2, batch 2). Run it "
        "again, and it resumes at step 8 (epoch 2, batch 2) from "
        f"{tmp_path}/step-00000008."
    )


def test_before_the_first_checkpoint_there_is_nothing_to_go_on_from(tmp_path):
    with pytest.raises(Broken) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail, 0, 1)])
    assert "it starts from scratch (there is no checkpoint yet)" in notes(error.value)
    (event,) = failed(tmp_path)
    assert (event["step"], event["resume_step"]) == (1, None)


def test_where_checkpoints_cannot_be_read_nothing_starts_from_scratch(
    tmp_path, monkeypatch
):
    fitting.interrupted(tmp_path)
    cannot_be_read(monkeypatch)
    with pytest.raises(resilient.CheckpointReadError) as error:
        fitting.fit(fitting.model(), tmp_path)
    assert "Nothing in it was changed" in str(error.value)
    assert notes(error.value) == ""


@pytest.mark.waits
def test_checkpoints_that_cannot_be_read_any_more_are_not_forgotten(
    tmp_path, monkeypatch
):
    def fail_and_hide():
        cannot_be_read(monkeypatch)
        fail()

    callbacks = [Do(fail_and_hide)]
    with pytest.raises(Broken) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=callbacks, save_freq=4)
    assert "once the checkpoints that are there can be read" in notes(error.value)


def test_an_error_of_ours_says_itself_what_to_do(tmp_path):
    fitting.interrupted(tmp_path)
    with pytest.raises(resilient.CheckpointMismatchError) as error:
        fitting.fit(fitting.model(of=lambda: fitting.layers(3)), tmp_path)
    assert notes(error.value) == ""


def test_the_event_tells_one_bug_from_another(tmp_path):
    def other():
        raise Broken("corrupt image")

    for function in (fail, fail, other):
        with pytest.raises(Broken):
            fitting.fit(fitting.model(), tmp_path, callbacks=[Do(function)])
    first, second, third = failed(tmp_path)
    assert first["error"].endswith("test_errors_in_fit.Broken")
    assert first["message"] == "corrupt image"
    assert first["where"][-1].endswith(" fail")
    assert (first["step"], first["epoch"], first["batch"]) == (8, 1, 2)
    assert first["resume_step"] == 6
    assert first["signature"] == second["signature"] != third["signature"]


def test_a_run_goes_on_after_errors_as_if_nothing_had_happened(tmp_path):
    expected = fitting.model()
    expected.fit(**fitting.arguments())
    for at in ((0, 3), (1, 2), (2, None)):
        with pytest.raises(Broken):
            fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail, *at)])
    net = fitting.model()
    fitting.fit(net, tmp_path, callbacks=[Do(list)])
    fitting.assert_equal(expected, net)


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [Speechless(), Broken("half \udc80")])
def test_an_odd_error_is_still_the_users(tmp_path, error):
    def odd():
        raise error

    with pytest.raises(type(error)) as found:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(odd)])
    assert found.value is error
    assert "resumes at step 6" in notes(error)
    assert len(failed(tmp_path)) == 1


@pytest.mark.parametrize("resume", ["never", 6])
def test_who_resumes_from_elsewhere_is_told_so(tmp_path, resume):
    with pytest.raises(Broken):
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail)])
    with pytest.raises(Broken) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail)], resume=resume)
    assert 'with resume="auto" it resumes at step 6' in notes(error.value)


def test_before_a_batch_was_trained_there_is_no_note(tmp_path):
    """The call itself is wrong: run again, it would fail alike."""
    fitting.interrupted(tmp_path)
    with pytest.raises(ValueError, match=r"call `compile\(\)`") as error:
        fitting.fit(keras.Sequential(fitting.layers()), tmp_path)
    assert "keras-resilient" not in notes(error.value)
    x = np.zeros((fitting.SAMPLES, 7), "float32")
    with pytest.raises(Exception, match="7") as error:
        fitting.fit(fitting.model(), tmp_path / "wrong shape", x=x)
    assert "keras-resilient" not in notes(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("epoch", "Did you mean `epochs`?"),
        ("save_frequency", "Did you mean `save_freq`?"),
        ("zzz", "Its arguments are those of model.fit and of resilient.fit."),
    ],
)
def test_an_unknown_keyword_is_refused_before_anything_is_done(tmp_path, name, hint):
    with pytest.raises(TypeError) as error:
        fitting.fit(fitting.model(), tmp_path / "run", **{name: 5})
    assert str(error.value) == f"fit() has no argument `{name}`.\n{hint}"
    assert not (tmp_path / "run").exists()


def test_an_argument_of_the_constructor_is_known_to_fit(tmp_path):
    run = resilient.ResilientFit(fitting.model(), checkpoint_dir=tmp_path / "run")
    with pytest.raises(TypeError, match="`keep` where you make the ResilientFit"):
        run.fit(**fitting.arguments(), keep=2)


class OwnFit(keras.Sequential):
    def fit(self, x, y, *, rounds, **kwargs):
        return super().fit(x, y, epochs=rounds, **kwargs)


class NarrowFit(keras.Sequential):
    def fit(self, x, y, batch_size, verbose, rounds):
        return super().fit(x, y, batch_size=batch_size, verbose=verbose, epochs=rounds)


def test_the_parameters_of_a_fit_of_the_users_own_count(tmp_path):
    given = fitting.arguments()
    del given["epochs"]
    for cls in (OwnFit, NarrowFit):
        net = fitting.model(cls=cls)
        history = resilient.fit(
            net, checkpoint_dir=tmp_path / cls.__name__, **given, rounds=2
        )
        assert history.epoch == [0, 1]
    with pytest.raises(
        TypeError, match=r"no argument `round`\.\nDid you mean `rounds`\?"
    ):
        resilient.fit(net, checkpoint_dir=tmp_path, **given, round=2)


@pytest.mark.parametrize("resume", [True, False])
def test_resume_is_not_a_switch(tmp_path, resume):
    with pytest.raises(ValueError, match=rf'must be "auto", .*\n.*: {resume}'):
        fitting.fit(fitting.model(), tmp_path, resume=resume)


@pytest.mark.parametrize(
    ("epoch", "kind"), [(-1, ValueError), (1.0, TypeError), ("1", TypeError)]
)
def test_an_epoch_that_cannot_be_the_first_is_refused(tmp_path, epoch, kind):
    with pytest.raises(kind) as error:
        fitting.fit(fitting.model(), tmp_path, initial_epoch=epoch)
    problem = "`initial_epoch` must be an integer of 0 or more."
    assert str(error.value) == f"{problem}\nReceived: {epoch!r}"
    assert not list(tmp_path.glob("step-*"))
    assert "training" not in {event["event"] for event in read_events(tmp_path)}
    fitting.fit(fitting.model(), tmp_path, initial_epoch=np.int64(1))


@pytest.mark.parametrize("on", ["instance", "class"])
def test_a_fit_that_was_replaced_by_ours_is_named(tmp_path, monkeypatch, on):
    class Model(keras.Sequential):
        pass

    def replaced(net, *args, **kwargs):
        return resilient.fit(net, *args, checkpoint_dir=tmp_path, **kwargs)

    net = fitting.model(cls=Model)
    if on == "class":
        monkeypatch.setattr(Model, "fit", replaced)
    else:
        net.fit = types.MethodType(replaced, net)
    with pytest.raises(resilient.NotSupportedError) as error:
        net.fit(**fitting.arguments())
    text = str(error.value)
    assert "model.fit was replaced by a function that calls resilient.fit" in text
    assert "Model.fit is <bound method" in text
    assert "resilient.enabled" in text


def test_a_fit_within_another_needs_a_directory_of_its_own(tmp_path):
    def inner():
        fitting.fit(fitting.model(), tmp_path)

    with pytest.raises(resilient.DirectoryInUseError) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(inner)])
    assert "This process is already using this checkpoint directory" in str(error.value)


def test_a_model_of_keras_2_is_called_so(tmp_path):
    """By the class of Keras 2 that it is derived from."""
    of_keras_2 = {"__module__": "tf_keras.src.engine.training"}
    derived = type("Mine", (type("Model", (), of_keras_2),), {"__module__": "__main__"})
    with pytest.raises(TypeError) as error:
        fitting.fit(derived(), tmp_path)
    lines = str(error.value).splitlines()
    assert lines[:2] == [
        "resilient.fit trains a keras.Model, of Keras 3.",
        "Received: __main__.Mine, a subclass of tf_keras.src.engine.training.Model",
    ]
    assert "`import keras` and without TF_USE_LEGACY_KERAS" in lines[2]
    with pytest.raises(TypeError, match=r"Received: numpy\.ndarray\n"):
        fitting.fit(np.ones(3), tmp_path)


def test_a_keyboard_interrupt_has_a_note_too(tmp_path):
    def press():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(press)])
    assert "Run it again, and it resumes at step 6" in notes(error.value)


def test_what_is_being_written_is_finished_before_the_error(tmp_path, monkeypatch):
    """The error waits for it, and the note tells of it."""
    with pytest.raises(Interrupted) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt(1, 2)], save_freq=8)
    assert fitting.steps(tmp_path) == [8]
    assert "it resumes at step 8" in notes(error.value)


@pytest.mark.waits
def test_a_directory_that_became_a_file_is_said(tmp_path):
    directory = tmp_path / "run"

    def replace():
        directory.rename(tmp_path / "moved")
        directory.touch()

    with pytest.raises(resilient.CheckpointWriteError, match="replaced the directory"):
        fitting.fit(fitting.model(), directory, callbacks=[Do(replace)], save_freq=4)


@pytest.mark.everywhere
def test_the_traceback_ends_at_the_users_line(tmp_path):
    """Though it was raised in the middle of Keras's fit, or of a loop."""

    def last_frame(error):
        return traceback.extract_tb(error.value.__traceback__)[-1].name

    def callback():
        run.fit(*fitting.data())  # from within itself

    fitting.fit(fitting.model(), tmp_path, epochs=1)
    with pytest.raises(resilient.CheckpointMismatchError) as error:
        fitting.fit(fitting.model(optimizer="sgd"), tmp_path)
    assert last_frame(error) == "fit"
    assert error.traceback[-1].path == Path(fitting.__file__)
    with pytest.raises(resilient.CheckpointMismatchError) as error:
        next(
            resilient.Run(tmp_path, net=fitting.model()).loop(fitting.data(), epochs=1)
        )
    assert last_frame(error) == "test_the_traceback_ends_at_the_users_line"
    net = fitting.model()
    run = resilient.ResilientFit(net, checkpoint_dir=tmp_path / "other")
    with pytest.raises(resilient.DirectoryInUseError) as error:
        run.fit(*fitting.data(), callbacks=[Do(callback, 0, 0)], verbose=0)
    assert last_frame(error) == "callback"
