"""Getting back to a position by drawing again what was drawn before."""

import logging
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import track

from resilient.data.source import SourceContext
from resilient.errors import DataNotResumableError

logger = logging.getLogger(__name__)


def skip(batches: Iterator[Any], count: int, name: str, settings: SourceContext) -> Any:
    """Draw ``count`` batches, with a progress bar; return the last one.

    Args:
        batches: The iterator, at its start.
        count: How many batches to draw.
        name: What is replayed, for messages.
        settings: Of this fit.

    Raises:
        DataNotResumableError: The data ended before.
    """
    logger.info("Replaying %s batches of %s", f"{count:,}", name)
    steps = track(
        range(count),
        description=f"Replaying {count:,} batches of {name}",
        console=Console(file=sys.stderr),
        disable=not settings.verbose or not count,
    )
    last = None
    for done in steps:
        settings.replaying()
        try:
            last = next(batches)
        except StopIteration:
            raise ended(name, settings, count, done) from None
    return last


def ended(
    name: str, settings: SourceContext, count: int, done: int
) -> DataNotResumableError:
    """The error for data that has fewer batches than it had."""
    return DataNotResumableError(
        "The data ended before the batch to resume at: it was changed, or it is "
        "not the same each time it is iterated.",
        received=f"`{settings.argument}` ({name}): {done:,} batches, of {count:,} "
        "drawn",
        hint='Make the data what it was, or start anew with resume="never".',
    )
