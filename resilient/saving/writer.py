"""A background thread that runs one job at a time.

A job is the write of a checkpoint, which training hands over before it continues.
Nothing queues up here: another job has to wait or be offered later. An error is kept
until the training thread asks for it.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from resilient.forked import in_forked_child

_writers = weakref.WeakSet["BackgroundWriter"]()


class BackgroundWriter:
    """Runs one job at a time, in the background."""

    def __init__(self) -> None:
        # The first job starts the thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resilient-writer")
        self._job: Future[None] | None = None
        self._hurried = threading.Event()
        _writers.add(self)

    @property
    def has_job(self) -> bool:
        """Whether there is a job whose end has not been reported."""
        return self._job is not None

    def start(self, job: Callable[[], None], *, delay: float = 0.0) -> None:
        """Run a job in the background; the previous one must be over.

        Args:
            job: Runs on the writer's thread.
            delay: Seconds until it begins, unless somebody hurries it or waits for it.
        """
        assert self._job is None
        self._hurried.clear()
        self._job = self._thread.submit(self._run, job, delay)

    def busy(self) -> bool:
        """Whether a job is running, or about to.

        Raises:
            Exception: What the last job raised, once.
        """
        if self._job is None:
            return False
        if not self._job.done():
            return True
        self.wait()
        return False

    def start_now(self) -> None:
        """Start a delayed job."""
        self._hurried.set()

    def wait(self) -> None:
        """Return when no job is running.

        Raises:
            Exception: What the last job raised, once.
        """
        job = self._job
        self.start_now()
        if job is not None:
            job.exception()  # if interrupted while waiting, keep the job
            self._job = None
            job.result()

    def end(
        self, error: BaseException | None, wait: Callable[[], None] | None = None
    ) -> None:
        """Wait for the last job, and close.

        Args:
            error: What ends training: an error of the job becomes a note of it.
            wait: Waits for the job in place of ``wait``.

        Raises:
            Exception: What the last job raised, if training ends without an error.
        """
        try:
            (wait or self.wait)()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"In addition, {type(failure).__name__}: {failure}")
        finally:
            self.close()

    def close(self) -> None:
        """Return when the thread has ended. An unreported error is kept."""
        self.start_now()
        self._thread.shutdown(wait=True)

    def leave_to_parent(self) -> None:
        """This process was forked: the thread and its job belong to the parent."""
        self._job = None

    def _run(self, job: Callable[[], None], delay: float) -> None:
        self._hurried.wait(delay)
        job()


@in_forked_child
def _leave_to_parent() -> None:
    for writer in list(_writers):
        writer.leave_to_parent()
