"""Notes every message of ours that a test provokes, in all processes that it starts.

``nox -s messages`` puts this directory on PYTHONPATH; each process appends what it
says, and which line of ours said it, to the file that ``RESILIENT_MESSAGES`` names.
"""

import functools
import json
import logging
import os
import sys

import wrapt

FILE = os.environ["RESILIENT_MESSAGES"]
# What looks for the line of the user passes over our frames, and over these.
__name__ = "resilient.errors"


def note(kind, site, text):
    line = json.dumps({"kind": kind, "site": site, "text": text}) + "\n"
    descriptor = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())  # at once: others append as well
    finally:
        os.close(descriptor)


def caller():
    """The nearest line of ours that is not in ``errors``."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("resilient.") and name != "resilient.errors":
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def noting(kind, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        found, site = function(*args, **kwargs), caller()
        if site is not None:  # else a test made it
            note(kind, site, found or "\n  ".join([args[0], *args[1]]))
        return found

    return call


class Noted(logging.Handler):
    def emit(self, record):
        note("log", f"{record.name}:{record.lineno}", record.getMessage())


@wrapt.when_imported("resilient.errors")
def begin(errors):
    """Before any other module of ours can have the functions."""
    errors.message = noting("error", errors.message)
    errors.warn_not_exact = noting("NotExactWarning", errors.warn_not_exact)
    logging.getLogger("resilient").addHandler(Noted(logging.WARNING))
