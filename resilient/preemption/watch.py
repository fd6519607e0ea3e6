"""Runs beside training: writes its heartbeat, and watches for requests.

Training reports signs of life and asks whether it should stop, which costs next to
nothing. About twice a second a thread writes the heartbeat, looks for the files
``save`` and ``stop`` in the checkpoint directory, and asks the clouds. If training
cannot stop before the grace period is over (it waits for data, say), it is interrupted,
and the last checkpoint stands.
"""

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from resilient.errors import TrainingStopped
from resilient.preemption.requests import (
    STOP_FILE,
    Preemption,
    Requests,
    listening,
    wake_main_thread,
)
from resilient.progress import Progress
from resilient.storage.layout import HEARTBEAT, SAVE, STOP
from resilient.telemetry.heartbeat import VARIABLE, Heartbeat, Phase

logger = logging.getLogger(__name__)

_LOOK_EVERY = 0.5  # seconds
_ASK_EVERY = 5.0  # seconds, as clouds advise


class Watch:
    """Watches one fit.

    Args:
        attempt: Identifies this attempt.
        directory: The checkpoint directory, which this process has locked.
        preemption: What may ask to stop; None: only the files.
        requests: Holds requests.
        leads: Whether this is process 0, which looks after the directory's files.
        request_save: Called when the file ``save`` was touched.
    """

    def __init__(
        self,
        attempt: str,
        directory: Path,
        preemption: Preemption | None,
        requests: Requests | None = None,
        *,
        leads: bool = True,
        request_save: Callable[[], None] = lambda: None,
    ) -> None:
        self.requests = requests or Requests()
        self._leads, self._request_save = leads, request_save
        self._directory = directory
        self._preemption = preemption or Preemption(signals=(), notices=())
        named = os.environ.get(VARIABLE)
        paths = [Path(named)] if named else []
        paths += [directory / HEARTBEAT] if leads else []
        self._heart = Heartbeat(attempt, directory, paths)
        self._over = threading.Event()
        self._ended_with: weakref.ref[TrainingStopped] | None = None
        self._warned: set[object] = set()  # probes that have failed
        self._interrupting = self._interrupted = False

    # Called by training, in its own thread. -------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether training was asked to stop."""
        return self.requests.stop is not None

    def beat(self, phase: Phase, progress: Progress | None = None) -> None:
        """Training goes on."""
        self._heart.beat(phase, progress)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Entered while waiting for a write: no interruption, no hang."""
        before = self._heart.phase
        self.beat("saving")
        try:
            yield
        finally:
            self.beat(before)

    def stop_unless_time(self, seconds: float | None) -> None:
        """End fit if it was asked to stop and less time is left than needed.

        Args:
            seconds: How long a save takes; None if unknown, which counts as no time:
                trying does no harm.

        Raises:
            TrainingStopped: The last checkpoint stands.
        """
        if self.stopping and not self.requests.leaves(seconds or 0.0):
            self.stop(saved=False)

    def stop_if_asked(self, *, saved: bool = False) -> None:
        """End fit if it was asked to stop and nothing is left to save."""
        if self.stopping:
            self.stop(saved=saved)

    def stop(self, *, saved: bool) -> NoReturn:
        """End fit; ``saved`` says whether the current state is saved."""
        raise self._stopped(saved=saved)

    def disarm(self) -> None:
        """Fit is ending for whatever reason: do not interrupt it any more."""
        self._interrupted = True

    def _stopped(self, *, saved: bool) -> TrainingStopped:
        self.disarm()
        end = self.requests.stopped(self._heart.progress, saved=saved)
        # Its traceback leads back here: a cycle would keep everything that fit used.
        self._ended_with = weakref.ref(end)
        return end

    @property
    def ended_with(self) -> TrainingStopped | None:
        """The exception with which this watch ended fit, while it propagates."""
        return None if self._ended_with is None else self._ended_with()

    @property
    def progress(self) -> Progress:
        """Where training was at its last sign."""
        return self._heart.progress

    # Around a fit. --------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside, signals are handled and the threads run.

        Raises:
            TrainingStopped: A request came just before the end.
        """
        self.look()  # notice an earlier request before doing anything
        how = self._preemption
        with listening(how.signals, self.requests, how.grace_period, self._overdue):
            watching = self._repeat("resilient-watch", _LOOK_EVERY, self.look)
            if how.notices:  # not waited for: clouds may hang
                self._repeat("resilient-notices", _ASK_EVERY, self.ask)
            try:
                yield
            finally:
                self.disarm()
                self._over.set()
                watching.join()
                self.beat("ended")
                self._heart.write()
                stop = self.requests.stop
                if self._leads and stop is not None and stop.reason == STOP_FILE:
                    self._take(STOP)
        if self.stopping:
            self.stop(saved=True)

    def _repeat(
        self, name: str, seconds: float, function: Callable[[], None]
    ) -> threading.Thread:
        """Call a function on a thread of this name until fit is over."""

        def run() -> None:
            while not self._over.is_set():
                try:
                    function()
                except Exception:  # whatever it was, the next call may succeed
                    logger.exception("The thread %s failed", name)
                self._over.wait(seconds)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    # On the threads. ------------------------------------------------------------------

    def look(self) -> None:
        """Write the heartbeat, and notice requests."""
        self._heart.write()
        if self._leads:
            if self._take(SAVE):
                self._request_save()
            if os.path.lexists(self._directory / STOP):  # removed once it is obeyed
                self.requests.ask_to_stop(STOP_FILE)
        if self.stopping and not self.requests.leaves():
            self._interrupt()

    def ask(self) -> None:
        """Ask all clouds for notices."""
        for probe in self._preemption.notices:
            try:
                notice = probe()
                if notice is not None and not (isinstance(notice, str) and notice):
                    raise TypeError(f"it returned {notice!r}, not None or a string")
            except Exception as error:  # a silent cloud must not stop training
                if probe not in self._warned:
                    logger.warning("Cannot check for preemption notices: %s", error)
                self._warned.add(probe)
                continue
            self._warned.discard(probe)
            if notice is not None:
                self.requests.ask_to_stop(notice, self._preemption.grace_period)

    def _take(self, name: str) -> bool:
        """Remove a touched file; whether it was there."""
        try:
            (self._directory / name).unlink()
        except OSError:
            return False
        return True

    def _interrupt(self) -> None:
        """Get the main thread out of whatever it waits for, once.

        Not out of a save, and not again while the exception propagates.
        """
        if not (self._interrupted or self._heart.phase in ("saving", "ended")):
            self._interrupting = True
            wake_main_thread(self._preemption.signals)

    def _overdue(self) -> BaseException | None:
        interrupts = self._interrupting and not self._interrupted
        return self._stopped(saved=False) if interrupts else None
