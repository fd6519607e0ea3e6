"""The error for calls of a run where they mean nothing."""

from resilient.errors import ResilientError


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for ``run.what``; ``todo`` says where it belongs."""
    return ResilientError(f"run.{what} cannot be used here.", hint=todo)
