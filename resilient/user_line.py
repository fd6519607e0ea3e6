"""Ends the traceback of our errors at the line of user code that caused them.

It shortens only errors that were raised on purpose, with a text that says everything,
or where Python refused the arguments. Frames of user code stay, such as those of a
callback that called us. The full traceback is logged at DEBUG.
"""

import contextlib
import logging
from types import TracebackType

from resilient.errors import Text

logger = logging.getLogger(__name__)

# Packages whose frames are left out: ours, and those that run it.
_LEFT_OUT = ("resilient", "keras", "concurrent", "contextlib")


class _EndingAtUserLine(contextlib.ContextDecorator):
    """Shortens tracebacks: a context, and a decorator of functions."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or trace is None or not _is_on_purpose(error, trace):
            return
        logger.debug("The full traceback of an error:", exc_info=error)
        each: BaseException | None = error
        while each is not None:
            each.__traceback__ = _shortened(each.__traceback__)
            each = each.__cause__


# Used around every public function that may raise errors from deep inside.
ending_at_user_line = _EndingAtUserLine()


def _is_on_purpose(error: BaseException, trace: TracebackType) -> bool:
    if trace.tb_next is None and _package(trace) == "contextlib":
        return True  # nothing was called: the arguments do not match the function
    return bool(error.args) and isinstance(error.args[0], Text)


def _shortened(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _shortened(trace.tb_next)
    if _package(trace) in _LEFT_OUT:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _package(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
