"""Errors that end a search."""


class FatalError(Exception):
    """One that is no failed trial."""
