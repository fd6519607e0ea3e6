"""Makes the batches of a PyDataset in several threads or processes, in order.

The threads and processes are those of Keras's enqueuer, with its names and start
method. The queue is ours, because Keras's cannot start in the middle of an order, and
carries prefetched batches from one epoch into the next.

A dataset that draws random numbers or changes its attributes while making a batch
cannot yield the same batches twice with several workers: which worker comes first is
chance, in Keras too. We watch the first batches for that.
"""

import sys
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from resilient import keras_internals
from resilient.errors import DataWorkerError
from resilient.objects.attributes import generators
from resilient.serialization import classes, rng

_PATIENCE = 1.0  # seconds between two looks at the processes
_WATCHED = 2  # batches
_FEW = 8  # items


class Workers:
    """Makes batches in a new pool for each iterator.

    Args:
        ahead: How many batches to prefetch.
    """

    def __init__(self, dataset: Any, ahead: int) -> None:
        self._dataset = dataset
        self._ahead = max(1, ahead)
        self._processes = bool(dataset.use_multiprocessing)
        # Never started: it only knows how Keras makes a pool, and its name.
        self._keras = keras_internals.OrderedEnqueuer(
            dataset, workers=dataset.workers, use_multiprocessing=self._processes
        )
        self._watched = 0
        self._started: list[Any] = []
        self.findings: list[str] = []

    def batches(self, indices: Iterator[int]) -> Generator[tuple[int, Any]]:
        """Each index and its batch, in this order."""
        if not self._processes:
            # In this thread, so that no other thread draws meanwhile.
            while (
                self._watched < _WATCHED and (index := next(indices, None)) is not None
            ):
                yield index, self._found(_Watched(self._dataset, forked=False)[index])
        known, uid = keras_internals.SHARED_DATASETS, self._keras.uid
        watch = self._watched < _WATCHED
        known[uid] = _Watched(self._dataset, forked=True) if watch else self._dataset
        coming: deque[tuple[int, Any]] = deque()
        with closing(self._keras.executor_fn(known)) as pool:
            # The pool replaces processes that die, but their batches are lost.
            self._started = list(pool._pool) if self._processes else []
            try:
                for index in indices:
                    asked = pool.apply_async(keras_internals.get_index, (uid, index))
                    coming.append((index, asked))
                    if len(coming) > self._ahead:
                        yield self._taken(*coming.popleft(), watch=watch)
                while coming:
                    yield self._taken(*coming.popleft(), watch=watch)
            finally:
                # Wait, or they would see what on_epoch_end changes; but at interpreter
                # exit, the threads that make them are already gone.
                if not self._processes and not sys.is_finalizing():
                    for _, asked in coming:
                        asked.wait()
                known[uid] = None

    def _taken(self, index: int, asked: Any, *, watch: bool) -> tuple[int, Any]:
        asked.wait(_PATIENCE if self._started else None)
        while not asked.ready():
            self._check_alive(index)
            asked.wait(_PATIENCE)
        made = asked.get()
        return index, self._found(made) if watch else made

    def _check_alive(self, index: int) -> None:
        codes = [each.exitcode for each in self._started if each.exitcode is not None]
        if codes:
            raise DataWorkerError(
                f"A worker process of {type(self._dataset).__qualname__} died.",
                received=f"exit code {codes[0]} while waiting for batch {index} (a "
                "negative code is a signal: -9 often means that memory ran out, -11 "
                "a crash in native code)",
                hint="Run the script again: training continues from the last "
                "checkpoint. If it happens again, use fewer workers, a smaller "
                "max_queue_size, or use_multiprocessing=False.",
            )

    def _found(self, made: tuple[Any, list[str]]) -> Any:
        batch, found = made
        self._watched += 1
        self.findings += [name for name in found if name not in self.findings]
        return batch


class _Watched:
    """A dataset that says what its first batches draw from, or change.

    Args:
        forked: Whether this runs in another process, which must not touch a backend.
    """

    def __init__(self, dataset: Any, *, forked: bool) -> None:
        self._dataset = dataset
        self._forked = forked
        self._count = 0

    def __getitem__(self, index: int) -> tuple[Any, list[str]]:
        self._count += 1
        if self._count > _WATCHED:
            return self._dataset[index], []
        reached = generators({"self": self._dataset})
        before = self._now(reached)
        batch = self._dataset[index]
        after = self._now(reached)
        name = type(self._dataset).__qualname__.rpartition("<locals>.")[2]
        return batch, [
            f"{name}.__getitem__ draws from, or changes, {part}"
            for part in before | after
            if before.get(part) != after.get(part)
        ]

    def _now(self, reached: Mapping[str, Any]) -> dict[str, Any]:
        """The states of random generators, and glances at attributes."""
        shared = rng.global_generators().items()
        found = {f"{name}'s global generator": rng.state(each) for name, each in shared}
        if not self._forked:
            seed = keras_internals.global_seed_generator_state()
            found["Keras's global generator"] = seed
        held = vars(self._dataset).items()
        return (
            found
            | rng.states(reached)
            | {f"self.{name}": _glance(value) for name, value in held}
        )


def _glance(value: Any, depth: int = 3) -> Any:
    """A cheap value that almost always differs if the original has changed."""
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    if depth and type(value) in (list, tuple, dict) and len(value) <= _FEW:
        items = value.items() if type(value) is dict else enumerate(value)
        return [(key, _glance(item, depth - 1)) for key, item in items]
    if type(value) is np.ndarray and value.nbytes <= _FEW * 8:
        return value.tobytes()
    if depth and not classes.is_foreign(type(value)):
        found = getattr(value, "__dict__", {})
        return [(key, _glance(item, depth - 1)) for key, item in found.items()]
    return id(value)
