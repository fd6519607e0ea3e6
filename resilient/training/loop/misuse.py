"""Errors for calls of a run where they mean nothing, and for counts that are none."""

from numbers import Integral

from resilient.errors import ResilientError, message


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for a call where it means nothing."""
    return ResilientError(f"run.{what} does not go here.", hint=todo)


def require_count(name: str, value: object) -> None:
    """Raise ValueError for what is no whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(
            message(
                f"`{name}` is a whole number from 1 on.",
                received=f"{name}={value!r}",
                hint="Pass how many.",
            )
        )
