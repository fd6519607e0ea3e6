"""An error in fit: it goes on its way, and says where the run will go on."""

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
        "keras-resilient: training failed after step 8 (epoch 2, batch 2); run again, "
        f"it goes on at step 8 (epoch 2, batch 2) from {tmp_path}/step-00000008."
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
    assert "It stays as it is" in str(error.value)
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
    assert "when the checkpoints that are there can be read" in notes(error.value)


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
    assert "goes on at step 6" in notes(error)
    assert len(failed(tmp_path)) == 1


@pytest.mark.parametrize("resume", ["never", 6])
def test_who_resumes_from_elsewhere_is_told_so(tmp_path, resume):
    with pytest.raises(Broken):
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail)])
    with pytest.raises(Broken) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(fail)], resume=resume)
    assert 'with resume="auto" it goes on at step 6' in notes(error.value)


def test_a_keyboard_interrupt_has_a_note_too(tmp_path):
    def press():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Do(press)])
    assert "run again, it goes on at step 6" in notes(error.value)


def test_what_is_being_written_is_finished_before_the_error(tmp_path, monkeypatch):
    """The error waits for it, and the note tells of it."""
    with pytest.raises(Interrupted) as error:
        fitting.fit(fitting.model(), tmp_path, callbacks=[Interrupt(1, 2)], save_freq=8)
    assert fitting.steps(tmp_path) == [8]
    assert "it goes on at step 8" in notes(error.value)


@pytest.mark.waits
def test_a_directory_that_became_a_file_is_said(tmp_path):
    directory = tmp_path / "run"

    def replace():
        directory.rename(tmp_path / "moved")
        directory.touch()

    with pytest.raises(resilient.CheckpointWriteError, match="replaced the directory"):
        fitting.fit(fitting.model(), directory, callbacks=[Do(replace)], save_freq=4)
