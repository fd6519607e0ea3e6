"""Returns to a position by drawing the batches again."""

import logging
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from resilient.data.source import DataSource
from resilient.errors import DataNotResumableError

logger = logging.getLogger(__name__)


def skip(batches: Iterator[Any], count: int, source: DataSource) -> Any:
    """Draw ``count`` batches, with a progress bar; return the last one.

    Raises:
        DataNotResumableError: The data ended too early.
    """
    logger.info("Replaying %s batches of %s", f"{count:,}", source.name)
    steps = track(
        range(min(count, sys.maxsize)),  # the largest range
        description=f"Replaying {count:,} batches of {source.name}",
        console=Console(file=sys.stderr),
        disable=not source.settings.verbose or not count,
    )
    last = None
    for done in steps:
        source.settings.replaying()
        try:
            last = next(batches)
        except StopIteration:
            raise ended(source, count, done) from None
    return last


def ended(source: DataSource, count: int, done: int) -> DataNotResumableError:
    """The error for data with fewer batches than before."""
    return DataNotResumableError(
        "The data ended before the batch to resume at: it changed, or is not the "
        "same each time it is iterated.",
        received=f"{source.argument}: {done:,} batches now, at least {count:,} before",
        hint='Use the same data as before, or start over with resume="never".',
    )
