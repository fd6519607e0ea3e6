"""Puts Python's garbage collector off while we make many objects that go again.

The collector runs by the number of new objects. Those of a snapshot or of a model's
configs are gone a moment later, but would make it look through everything that a large
model consists of: tens to hundreds of milliseconds, while training waits.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Collect no garbage in the body, unless the collector is off anyway."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
