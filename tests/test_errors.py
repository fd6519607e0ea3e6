"""Errors are built from fields, which a message shows in one order."""

import pickle

import pytest

from resilient.errors import (
    BackendNotAvailableError,
    CellStopped,
    DivergedError,
    Interrupted,
    NotExactWarning,
    Preempted,
    ResilientError,
    RolledBack,
    ScriptRolledBack,
    message,
    warn_not_exact,
)
from resilient.progress import Progress

pytestmark = pytest.mark.once


def test_a_message_has_the_problem_what_was_received_and_a_hint():
    error = DivergedError("The loss is bad.", received=float("nan"), hint="Lower it.")
    assert str(error) == "The loss is bad.\nReceived: nan\nLower it."
    assert error.problem == "The loss is bad."
    assert error.received == "nan"
    assert error.hint == "Lower it."


def test_fields_that_say_nothing_leave_no_line():
    assert message("It is so.") == "It is so."
    assert str(ResilientError("It is so.", hint="Wait.")) == "It is so.\nWait."


def test_an_error_survives_the_way_from_another_process():
    error = BackendNotAvailableError("No torch.", received=3, hint="Get it.", name="t")
    other = pickle.loads(pickle.dumps(error))
    assert str(other) == str(error)
    assert (other.problem, other.received, other.hint) == ("No torch.", "3", "Get it.")
    assert other.name == "t"


@pytest.mark.parametrize("kind", [Preempted, Interrupted, CellStopped])
def test_a_stop_reaches_another_process(kind):
    """By pickle, as engines send what ends their workers."""
    error = kind("stop file", Progress(7, 1, 2), saved=True)
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is kind
    assert (other.reason, other.progress) == ("stop file", Progress(7, 1, 2))
    assert other.saved
    assert other.args == error.args


@pytest.mark.parametrize("kind", [RolledBack, ScriptRolledBack])
def test_a_rollback_reaches_another_process(kind):
    other = pickle.loads(pickle.dumps(kind(Progress(7, 1, 2))))
    assert type(other) is kind
    assert other.progress == Progress(7, 1, 2)
    assert other.args == (75,)


def test_a_message_commands_no_terminal():
    odd = "\x1b]0;x\x07\x9b\r\u202e\u2066\u2028\x7f\udc80 é日本\n\ttwo"
    error = ResilientError("Bad.", received=odd, hint=odd)
    told = (
        r"\u001b]0;x\u0007\u009b\u000d\u202e\u2066\u2028\u007f\udc80 é日本" + "\n\ttwo"
    )
    assert str(error) == f"Bad.\nReceived: {told}\n{told}"
    assert error.received == odd


def test_a_name_in_a_warning_forges_no_line():
    with pytest.warns(NotExactWarning) as caught:
        warn_not_exact("odd \x1bnames", ["a\n  b", "\x1b[31m"])
    text = str(caught[0].message)
    assert text == "Not bit-exact: odd \\u001bnames:\n  a\\u000a  b\n  \\u001b[31m"
