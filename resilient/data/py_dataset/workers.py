"""Makes the batches of a PyDataset in several threads or processes, in order.

The threads and processes are those of Keras's enqueuer, with its names and start
method. The queue is ours, because Keras's cannot start in the middle of an order, and
carries prefetched batches from one epoch into the next.

A dataset that draws random numbers or changes its attributes while making a batch
cannot yield the same batches twice with several workers: which worker comes first is
chance, in Keras too. With threads, we watch the first batches for that.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from resilient import keras_internals
from resilient.errors import DataWorkerError

_PATIENCE = 1.0  # seconds between two looks at the processes
_WATCHED = 2  # batches


class Workers:
    """Makes batches in a new pool for each iterator.

    Args:
        ahead: How many batches to prefetch.
        watch: Makes a batch here, and says what that draws from or changes.

    Attributes:
        findings: What it said.
    """

    def __init__(
        self,
        dataset: Any,
        ahead: int,
        watch: Callable[[int], tuple[Any, list[str]]],
    ) -> None:
        self._dataset, self._watch = dataset, watch
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
                self._watched += 1
                batch, found = self._watch(index)
                self.findings += [each for each in found if each not in self.findings]
                yield index, batch
        known, uid = keras_internals.SHARED_DATASETS, self._keras.uid
        known[uid] = self._dataset
        coming: deque[tuple[int, Any]] = deque()
        with closing(self._keras.executor_fn(known)) as pool:
            # The pool replaces processes that die, but their batches are lost.
            self._started = list(pool._pool) if self._processes else []
            try:
                for index in indices:
                    asked = pool.apply_async(keras_internals.get_index, (uid, index))
                    coming.append((index, asked))
                    if len(coming) > self._ahead:
                        yield self._taken(*coming.popleft())
                while coming:
                    yield self._taken(*coming.popleft())
            finally:
                # Wait, or they would see what on_epoch_end changes; but at interpreter
                # exit, the threads that make them are already gone.
                if not self._processes and not sys.is_finalizing():
                    for _, asked in coming:
                        asked.wait()
                known[uid] = None

    def _taken(self, index: int, asked: Any) -> tuple[int, Any]:
        asked.wait(_PATIENCE)
        while not asked.ready():
            self._check_alive(index)
            asked.wait(_PATIENCE)
        return index, asked.get()

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
