"""Errors for calls of a run where they mean nothing, and for counts that are none."""

from numbers import Integral

from resilient.errors import ResilientError, message


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for a call where it means nothing."""
    return ResilientError(f"run.{what} cannot be used here.", hint=todo)


def require_count(name: str, value: object) -> None:
    """Raise ValueError for what is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(
            message(f"`{name}` must be a positive integer.", received=repr(value))
        )
