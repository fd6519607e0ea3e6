"""Saves that are waited for, so that a test knows what is committed when.

They run on the writer's thread as ever; only the training does not go on meanwhile.
Tests about what happens meanwhile do without (the ``background`` marker).
"""

from collections.abc import Callable
from typing import Any

from resilient.saving.checkpointer import Checkpointer


def waiting(save: Callable[..., None]) -> Callable[..., None]:
    """``Checkpointer.save``, with its end waited for."""

    def save_and_wait(self: Checkpointer, *args: Any, **kwargs: Any) -> None:
        save(self, *args, **kwargs)
        self.wait()

    return save_and_wait
