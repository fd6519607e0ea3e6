"""A star of TCP connections around process 0; each message is a line of JSON.

The library's collectives are left to training: messages sent through them would have to
come at the same point in every process, and a writer thread could not send any.

Every process sends a heartbeat each second. If a connection ends without a farewell, or
is silent for too long, the peer is lost.
"""

import os
import socket
import threading
from collections.abc import Callable

from resilient.distributed.messages import (
    LONGEST,
    Message,
    OddMessageError,
    line_of,
    message_of,
)
from resilient.errors import message

VARIABLE = "RESILIENT_PEER_TIMEOUT"
_TIMEOUT = 60.0
_SIGN_EVERY = 1.0  # seconds

_SIGN, _LEFT = "sign", "left"


def peer_timeout() -> float:
    """Seconds without a heartbeat after which a process counts as lost.

    Raises:
        ValueError: The environment variable is not a valid number.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return _TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 2 * _SIGN_EVERY < seconds < float("inf"):
        raise ValueError(
            message(
                f"{VARIABLE} must be a number of seconds above {2 * _SIGN_EVERY:g}.",
                received=repr(given),
            )
        )
    return seconds


class Connection:
    """One end of a connection to another process.

    Args:
        connected: The socket.
        peer: Index of the process at the other end.
        received: Called with each message, on this connection's thread. An
            OddMessageError ends the connection.
        lost: Called once, on that thread, with the reason, when the peer is lost or has
            left (None: its work was done).
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: int,
        received: Callable[[int, Message], None],
        lost: Callable[[int, str | None], None],
    ) -> None:
        self.peer = peer
        self._socket = connected
        self._received, self._lost = received, lost
        self._lock = threading.Lock()
        self._timeout = peer_timeout()
        self._over = threading.Event()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(self._timeout)

    def start(self) -> None:
        """Start receiving, and sending heartbeats."""
        for run in (self._receive, self._give_signs):
            name = f"resilient-peer-{self.peer}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def send(self, message: Message) -> None:
        """Send one message. If that fails, the receiving thread reports it."""
        line = line_of(message)
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self._over.set()

    def leave(self, why: str | None) -> None:
        """Say goodbye, with the reason unless the work is done."""
        self._over.set()
        self.send(Message(_LEFT, why))
        try:
            # Closing might discard data that the other end has not read yet.
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _receive(self) -> None:
        try:
            why = self._until_it_leaves()
        except TimeoutError:
            why = f"it sent no heartbeat for {self._timeout:g} seconds"
        except OSError as error:
            why = f"the connection broke ({error})"
        except OddMessageError as odd:
            why = f"it sent {odd}"
        except (
            Exception
        ) as error:  # whatever it is, others may be waiting for this thread
            why = f"its message cannot be handled ({type(error).__name__}: {error})"
        finally:
            self._over.set()
            self._socket.close()
        self._lost(self.peer, why)

    def _until_it_leaves(self) -> str | None:
        """Receive messages; return the peer's farewell (None: it was done)."""
        with self._socket.makefile("rb") as lines:
            while line := lines.readline(LONGEST + 1):
                if len(line) <= LONGEST and not line.endswith(b"\n"):
                    break  # the connection ended
                message = message_of(line)
                if message.to == _LEFT:
                    if not isinstance(message.body, str | None):
                        raise OddMessageError("a farewell whose reason is no text")
                    return message.body
                if message.to != _SIGN:
                    self._received(self.peer, message)
        return "it ended without reporting an error (killed, or memory ran out?)"

    def _give_signs(self) -> None:
        while not self._over.wait(_SIGN_EVERY):
            self.send(Message(_SIGN))
