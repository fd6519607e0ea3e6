"""The end of a process that cannot go on, and cannot know it.

A training step that waits for a process that is gone waits in a library's own code, for
half an hour where PyTorch's default holds, and no exception gets it out of there. Most
often the library notices by itself: it gets some seconds for that.
"""

import os
import sys
import threading

_NOTICE = 10.0  # seconds for the library, and for fit to end
_STATUS = 1


class PeerLossWatchdog:
    """Ends this process some seconds after a peer was lost, if nothing else does."""

    def __init__(self) -> None:
        self._over, self._heard = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def arm(self, error: BaseException) -> None:
        """End the process with this error, unless ``not_needed`` comes first."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._heard.set()
        threading.Thread(
            target=self._run, args=(error,), name="resilient-last-word", daemon=True
        ).start()

    def heard_within(self, seconds: float) -> BaseException | None:
        """The error of a peer that was lost, if that is known so soon."""
        self._heard.wait(seconds)
        return self._error

    def not_needed(self) -> None:
        """Fit is ending by itself."""
        self._over.set()

    def _run(self, error: BaseException) -> None:
        if self._over.wait(_NOTICE):
            return
        # Straight to the descriptor: whoever holds a lock on stderr may hang, too.
        line = f"\n{type(error).__module__}.{type(error).__name__}: {error}\n"
        try:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
        finally:
            os._exit(_STATUS)
