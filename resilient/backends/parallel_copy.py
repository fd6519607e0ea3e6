"""Copies arrays with several threads that share the work piece by piece.

One core does not use all of the memory's bandwidth. Threads with fixed shares (OpenMP,
say) wait for the slowest one, which on a busy machine may not run at all. Here each
thread takes the next piece when it runs, so that the copy is never slower than on one
thread by more than a piece.
"""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_PIECE = 4 << 20  # bytes
_FEW = 16 << 20  # bytes that are copied before another thread has begun
_THREADS = 4  # more gain nothing where memory is the limit


def copy_all(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy the second array of each pair into the first.

    Args:
        pairs: Of equal shapes and dtypes, in C order.
    """
    threads = min(_THREADS, os.cpu_count() or 1)
    if threads == 1 or sum(source.nbytes for _, source in pairs) < _FEW:
        for target, source in pairs:
            np.copyto(target, source)
        return
    pieces = deque(piece for pair in pairs for piece in _pieces(*pair))
    with ThreadPoolExecutor(threads - 1, "resilient-copy") as others:
        try:
            copying = [others.submit(_copy, pieces) for _ in range(threads - 1)]
        except RuntimeError:  # this process is ending, and starts no more threads
            copying = []
        _copy(pieces)
        for each in copying:
            each.result()


def _pieces(
    target: np.ndarray, source: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    if source.nbytes <= _PIECE:
        return [(target, source)]
    target, source = target.reshape(-1), source.reshape(-1)
    length = _PIECE // source.itemsize
    return [
        (target[start : start + length], source[start : start + length])
        for start in range(0, source.size, length)
    ]


def _copy(pieces: deque[tuple[np.ndarray, np.ndarray]]) -> None:
    while True:
        try:
            target, source = pieces.popleft()
        except IndexError:
            return
        np.copyto(target, source)
