"""Errors are built from fields, which a message shows in one order."""

import pickle

import pytest

from resilient.errors import (
    BackendNotAvailableError,
    DivergedError,
    ResilientError,
    message,
)

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
