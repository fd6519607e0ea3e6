"""Prints lines to the log and beside Keras's progress bar."""

import logging
from typing import Any

from resilient.errors import printable

logger = logging.getLogger(__name__)


class Notifier:
    """Logs a line, and prints it unless ``verbose`` of this fit is 0."""

    def __init__(self) -> None:
        self._verbose: Any = 0  # until ``set_verbose``

    def set_verbose(self, verbose: Any) -> None:
        """Take the ``verbose`` that the user passed to ``fit``."""
        self._verbose = verbose

    def __call__(self, line: str, *, within_epoch: bool = False) -> None:
        line = printable(line, lines=True)
        logger.info("%s", line)
        if self._verbose in (0, "0"):
            return
        bar = within_epoch and self._verbose not in (2, "2")  # a bar's line is open
        print(f"\n{line}" if bar else line, flush=True)  # noqa: T201  # as Keras does
