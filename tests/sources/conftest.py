"""Iterators that a test leaves behind end with it, not in the middle of another test.

Those in reference cycles end when garbage is collected, and the longer they have been
left the longer that can take: TensorFlow waits for a thread that tunes the pipeline,
which looks around once a minute in the end; torch five seconds for each worker process.
"""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _imported() -> None:
    """Leave out what was imported: to look through it would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _end_iterators(_imported: None) -> Iterator[None]:
    yield
    gc.collect()
