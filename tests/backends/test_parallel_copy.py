"""Copies are whole, however the pieces fall on threads."""

import threading

import numpy as np
import pytest

from resilient.backends import parallel_copy
from resilient.backends.parallel_copy import copy_all

pytestmark = pytest.mark.once

SIZES = [0, 1, 3, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_003]


def pairs_of(dtype):
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, n, np.uint8).astype(dtype) for n in SIZES]
    sources += [np.float32(3.5).reshape(()), np.zeros((0, 3)), rng.random((7, 1, 5))]
    return [(np.empty_like(source), source) for source in sources]


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_every_byte_is_copied(monkeypatch, cores, dtype):
    """Sizes around that of a piece, empty ones and scalars."""
    monkeypatch.setattr(parallel_copy.os, "cpu_count", lambda: cores)
    pairs = pairs_of(dtype)
    copy_all(pairs)
    assert len(pairs) == len(SIZES) + 3
    for target, source in pairs:
        assert target.tobytes() == source.tobytes()


def test_no_thread_is_left(monkeypatch):
    monkeypatch.setattr(parallel_copy.os, "cpu_count", lambda: 4)
    before = threading.active_count()
    copy_all(pairs_of("float64"))
    assert threading.active_count() == before


def test_nothing_to_copy():
    copy_all([])
