"""Saves that are waited for, so that a test knows what is committed when.

They run on the writer's thread as always; only the training does not go on meanwhile.
For tests that look at the directory right after a step (marked ``waits``), and for
half of the kills: there a kill point says what is committed. Scripts that know nothing
of it, as examples, are run by

    python waited.py SCRIPT ARGUMENT ...
"""

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resilient.saving.checkpointer import Checkpointer

SUBMIT = Checkpointer.submit


def wait_for_each_save() -> None:
    """From now on, in this process."""
    Checkpointer.submit = _waiting(lambda _: True)  # type: ignore[method-assign]


def wait_for_the_first_save() -> None:
    """So that a kill finds something to resume from, wherever it hits after that."""
    Checkpointer.submit = _waiting(  # type: ignore[method-assign]
        lambda checkpointer: checkpointer.newest is None
    )


@contextlib.contextmanager
def each_save_waited_for() -> Iterator[None]:
    """``wait_for_each_save``, for a while: in a test, or a fixture that trains."""
    before = Checkpointer.submit
    wait_for_each_save()
    try:
        yield
    finally:
        Checkpointer.submit = before  # type: ignore[method-assign]


def _waiting(wanted: Callable[[Checkpointer], bool]) -> Callable[..., None]:
    def submit_and_wait(self: Checkpointer, *args: Any, **kwargs: Any) -> None:
        wait = wanted(self)
        SUBMIT(self, *args, **kwargs)
        if wait:
            self.wait()

    return submit_and_wait


if __name__ == "__main__":
    wait_for_each_save()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
