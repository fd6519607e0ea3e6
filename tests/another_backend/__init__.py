"""Runs that go on on another backend: what is exact, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest

CHECKPOINTS = Path(__file__).parent / "checkpoints"  # see ``write``
FIT, LOOP = "step-00000006", "loop/step-00000003"

# What reads a backend's files; no backend needs that of another one for itself.
LIBRARIES = {"tensorflow": "tensorflow", "jax": "tensorstore", "torch": "torch"}


def need(*savers: str) -> None:
    """Skip a test where files of these backends cannot be read."""
    for saver in savers:
        library = LIBRARIES[saver]
        pytest.importorskip(library, reason=f"{library} reads {saver}'s files")


def lose(monkeypatch: Any, saver: str) -> None:
    """Let files of a backend be read as if its library were not installed."""
    # Not the library itself: other modules expect it where it is loaded.
    monkeypatch.setitem(sys.modules, f"resilient.backends.{saver}_files", None)
