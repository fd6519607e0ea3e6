"""Ends a process that is waiting for a lost peer.

The process waits inside the library's own code, where no exception reaches it: by
PyTorch's default for half an hour. Usually the library notices by itself, so it gets
some seconds.
"""

import os
import sys
import threading

_NOTICE = 10.0  # seconds for the library to notice and for fit to end
_STATUS = 1


class PeerLossWatchdog:
    """Ends this process some seconds after a peer was lost, unless fit ends first."""

    def __init__(self) -> None:
        self._over, self._armed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def arm(self, error: BaseException) -> None:
        """End the process with this error, unless ``not_needed`` comes first."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._armed.set()
        threading.Thread(
            target=self._run, args=(error,), name="resilient-watchdog", daemon=True
        ).start()

    def error_within(self, seconds: float) -> BaseException | None:
        """The error it was armed with, if that happens within these seconds."""
        self._armed.wait(seconds)
        return self._error

    def not_needed(self) -> None:
        """Fit is ending by itself."""
        self._over.set()

    def _run(self, error: BaseException) -> None:
        if self._over.wait(_NOTICE):
            return
        # Straight to the descriptor: a thread that holds stderr's lock may be hanging,
        # too.
        line = f"\n{type(error).__module__}.{type(error).__name__}: {error}\n"
        try:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
        finally:
            os._exit(_STATUS)
