"""Ends a process that is waiting for a lost peer.

The process waits inside the library's own code, where no exception reaches it: by
PyTorch's default for half an hour. Usually the library notices by itself, so it gets
some seconds.
"""

import contextlib
import os
import threading
from concurrent.futures import Future, InvalidStateError

from resilient.errors import PeerLostError

_NOTICE = 10.0  # seconds for the library to notice and for fit to end
_STATUS = 1


class PeerLossWatchdog:
    """Ends this process some seconds after a peer was lost, unless fit ends first."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._loss: Future[PeerLostError] = Future()

    def arm(self, error: PeerLostError) -> None:
        """End the process with this error, unless ``not_needed`` comes first."""
        with contextlib.suppress(InvalidStateError):  # a loss is known already
            self._loss.set_result(error)
            threading.Thread(
                target=self._run, args=(error,), name="resilient-watchdog", daemon=True
            ).start()

    def error_within(self, seconds: float) -> PeerLostError | None:
        """The error it was armed with, if that happens within these seconds."""
        with contextlib.suppress(TimeoutError):
            return self._loss.result(seconds)
        return None

    def not_needed(self) -> None:
        """Fit is ending by itself."""
        self._over.set()

    def _run(self, error: PeerLostError) -> None:
        if self._over.wait(_NOTICE):
            return
        # Straight to the descriptor: a thread that holds stderr's lock may be hanging,
        # too.
        line = f"\n{type(error).__module__}.{type(error).__name__}: {error}\n"
        try:
            os.write(2, line.encode())
        finally:
            os._exit(_STATUS)
