"""One end of a connection between two processes; each message is a JSON list.

``multiprocessing.connection`` frames the messages. Only its methods for bytes are used:
the others unpickle, and so run, what a peer sent. The library's collectives are left to
training: messages sent through them would have to come at the same point in every
process, and a writer thread could not send any.

Every process sends a heartbeat each second. If a connection ends without a farewell, or
is silent for too long, the peer is lost.
"""

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from resilient.errors import message
from resilient.serialization import Encoded
from resilient.telemetry.events import KILLED

VARIABLE = "RESILIENT_PEER_TIMEOUT"
_TIMEOUT = 60.0
_BEAT_EVERY = 1.0  # seconds
_LONGEST = 64 * 2**20  # bytes of a message, far above what training sends

_HEARTBEAT, _FAREWELL = "heartbeat", "farewell"


def peer_timeout() -> float:
    """Seconds without a heartbeat after which a process counts as lost.

    Raises:
        ValueError: The environment variable is not a valid number.
    """
    given = os.environ.get(VARIABLE, "")
    with contextlib.suppress(ValueError):
        if 2 * _BEAT_EVERY < (seconds := float(given or _TIMEOUT)) < 1e9:
            return seconds
    what = f"{VARIABLE} must be a number of seconds above {2 * _BEAT_EVERY:g}."
    raise ValueError(message(what, received=repr(given)))


def frames(connected: socket.socket, timeout: float) -> Connection:
    """Frames the messages on a socket.

    Args:
        connected: The socket. The connection ends when it and the result are closed,
            or when it is shut down.
        timeout: Seconds after which a read or write raises BlockingIOError.
    """
    connected.settimeout(None)  # the system's timeouts need a socket that blocks
    limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(os.dup(connected.fileno()))


class Channel:
    """One end of a connection to another process.

    Args:
        connected: The socket.
        peer: Index of the process at the other end.
        received: Called with the peer, the topic and the content of each message, on
            this channel's thread. An exception ends the connection.
        lost: Called once, on that thread, with the reason, when the peer is lost or has
            left (None: its work was done).
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: int,
        received: Callable[[int, str, Encoded], None],
        lost: Callable[[int, str | None], None],
    ) -> None:
        self.peer = peer
        self._received, self._lost = received, lost
        self._lock = threading.Lock()
        self._timeout = peer_timeout()
        self._ending = threading.Event()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._frames = connected, frames(connected, self._timeout)

    def start(self) -> None:
        """Start receiving, and sending heartbeats."""
        for run in (self._receive, self._send_heartbeats):
            name = f"resilient-peer-{self.peer}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def send(self, topic: str, body: Encoded = None) -> None:
        """Send one message. If that fails, the receiving thread reports it."""
        data = json.dumps([topic, body]).encode()
        try:
            with self._lock:
                self._frames.send_bytes(data)
        except OSError:
            self._ending.set()

    def leave(self, why: str | None) -> None:
        """Say goodbye, with the reason unless the work is done."""
        self._ending.set()
        self.send(_FAREWELL, why)

    def _receive(self) -> None:
        try:
            why = self._until_farewell()
        except EOFError:
            why = f"it was {KILLED}: it reported no end (did memory run out?)"
        except BlockingIOError:
            why = f"it sent no heartbeat for {self._timeout:g} seconds"
        except OSError as error:
            why = f"the connection broke ({error})"
        except Exception as error:  # whatever it is, others may be waiting for this
            why = f"its message cannot be handled ({type(error).__name__}: {error})"
        self._ending.set()
        with contextlib.suppress(OSError), self._socket:
            self._socket.shutdown(socket.SHUT_RDWR)  # ends a send that is waiting
        self._lost(self.peer, why)

    def _until_farewell(self) -> str | None:
        """Receive messages; return the peer's reason to leave (None: it was done)."""
        while True:
            topic, body = json.loads(self._frames.recv_bytes(_LONGEST))
            if topic == _FAREWELL:
                return body if body is None else str(body)
            if topic != _HEARTBEAT:
                self._received(self.peer, topic, body)

    def _send_heartbeats(self) -> None:
        while not self._ending.wait(_BEAT_EVERY):
            self.send(_HEARTBEAT)
