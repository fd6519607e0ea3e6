"""Lets checkpoints share the files of unchanged tensors, however small these are."""

from collections.abc import Callable
from typing import Any

from resilient.saving import writer


def share_files_of_small_tensors(change: Callable[..., Any] = setattr) -> None:
    """From now on in this process; or for a test, with ``monkeypatch.setattr``."""
    change(writer, "_LARGE", 64)
    change(writer, "_WORTH", 1)
