"""The traceback of an error of ours ends where the user's code called us."""

import logging
import traceback
import types

import pytest

import resilient
from resilient.errors import ResilientError
from resilient.user_line import ending_at_user_line

pytestmark = pytest.mark.once

OURS = """
def fails(error, cause=None):
    raise error from cause

def calls(function):
    return function()
"""


@pytest.fixture
def ours():
    """Functions of a module of ours."""
    found = {"__name__": "resilient.somewhere"}
    exec(OURS, found)
    return types.SimpleNamespace(**found)


def modules(error):
    """Of the frames in a traceback, without repetitions."""
    frames = traceback.walk_tb(error.__traceback__)
    return list(dict.fromkeys(frame.f_globals["__name__"] for frame, _ in frames))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda path: resilient.ResilientFit(None, checkpoint_dir=path, save_freq="x"),
        lambda path: resilient.ResilientFit(None, checkpoint_directory=path),
        lambda path: resilient.ResilientFit(None, checkpoint_dir=path).save(),
        lambda path: resilient.fit(None, checkpoint_dir=path, keep=0),
        lambda path: resilient.Checkpoints(path, [], keep=0),
        lambda path: resilient.export(path, path / "a.safetensors"),
        lambda path: resilient.import_checkpoint(path / "b", path, epoch=-1),
        lambda path: resilient.deterministic(threads=0),
    ],
)
def test_it_has_no_frame_of_ours(wrong, tmp_path):
    with pytest.raises((ResilientError, TypeError, ValueError)) as error:
        wrong(tmp_path)
    assert modules(error.value) == [__name__]


def test_entering_enabled(tmp_path):
    with (
        pytest.raises(
            TypeError, match=r"no option `save_frek`.\nDid .* `save_freq`"
        ) as e,
        resilient.enabled(tmp_path, save_frek=1),
    ):
        pass
    assert modules(e.value) == [__name__, "contextlib"]


def test_errors_of_others_are_left_alone(ours):
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error, ending_at_user_line:
        ours.calls(fails)
    assert modules(error.value) == [__name__, "resilient.somewhere"]
    with pytest.raises(TypeError) as error, ending_at_user_line:
        ours.calls(3)  # a fault of ours
    assert "resilient.somewhere" in modules(error.value)


def test_frames_of_the_user_stay(ours):
    """A callback that called us, say."""

    def callback():
        ours.fails(ResilientError("So it is."))

    with pytest.raises(ResilientError) as error, ending_at_user_line:
        ours.calls(callback)
    names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert names[-1] == "callback"
    assert modules(error.value) == [__name__]


def test_a_cause_is_shortened_too(ours):
    cause = OSError("No space")
    with pytest.raises(OSError, match="No space"):
        ours.fails(cause)
    with pytest.raises(ResilientError) as error, ending_at_user_line:
        ours.fails(ResilientError("It cannot be written."), cause)
    assert error.value.__cause__ is cause
    assert modules(cause) == [__name__]


def test_the_whole_of_it_is_logged_for_debugging(ours, caplog):
    with (
        caplog.at_level(logging.DEBUG, "resilient"),
        pytest.raises(ResilientError),
        ending_at_user_line,
    ):
        ours.fails(ResilientError("So it is."))
    assert "in fails" in caplog.text
