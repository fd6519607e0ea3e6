"""A star of connections over TCP: process 0 in the middle, one line of JSON a message.

Training's own collectives stay training's: messages of ours in between would have to
come at the same place in every process, and a writer's thread could not send any.

Every process sends a sign of life each second. A connection that ends without a
farewell, or is silent for too long, means that the other process is lost.
"""

import hmac
import json
import os
import queue
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping

from resilient.errors import message
from resilient.serialization import Encoded

# Seconds without a sign after which a process is taken for lost.
VARIABLE = "RESILIENT_PEER_TIMEOUT"
_TIMEOUT = 60.0
_SIGN_EVERY = 1.0  # seconds
_CONNECT = 60.0  # seconds

_SIGN, _LEFT = "sign", "left"


def peer_timeout() -> float:
    """Seconds without a sign after which a process is taken for lost.

    Raises:
        ValueError: The environment says something that is no such number.
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
        received: Called with each message, on this connection's thread.
        lost: Called once, on that thread, when the other process is lost; with why.
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: int,
        received: Callable[[int, dict[str, Encoded]], None],
        lost: Callable[[int, str], None],
    ) -> None:
        self.peer = peer
        self._socket = connected
        self._received, self._lost = received, lost
        self._lock = threading.Lock()
        self._timeout = peer_timeout()
        self._over = threading.Event()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(self._timeout)
        for run in (self._receive, self._give_signs):
            name = f"resilient-peer-{peer}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def send(self, message: Mapping[str, Encoded]) -> None:
        """Send one message. That nobody receives it any more, the reader will tell."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self._over.set()

    def leave(self, why: str | None) -> None:
        """Say goodbye, and for what reason if it is not the end of the work."""
        self._over.set()
        self.send({"to": _LEFT, "body": why})
        try:
            # The other end reads what was sent; closing might throw it away.
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _receive(self) -> None:
        why = "it ended without reporting an error (killed, or out of memory?)"
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if message["to"] == _SIGN:
                        continue
                    if message["to"] == _LEFT:
                        why = message["body"]
                        break
                    self._received(self.peer, message)
        except TimeoutError:
            why = f"it gave no sign for {self._timeout:g} seconds"
        except (OSError, ValueError) as error:
            why = f"the connection broke ({error})"
        finally:
            self._over.set()
            self._socket.close()
        self._lost(self.peer, why)

    def _give_signs(self) -> None:
        while not self._over.wait(_SIGN_EVERY):
            self.send({"to": _SIGN})


class Listener:
    """Where process 0 waits for the others. Closed when all came.

    Args:
        host: Its own address, as the others know it.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(16)
        if host in ("localhost", "127.0.0.1"):
            self._socket = socket.create_server((host, 0), backlog=128)
        elif socket.has_dualstack_ipv6():
            self._socket = socket.create_server(
                ("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
        else:
            self._socket = socket.create_server(("", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])

    def accept_all(self, count: int) -> dict[int, socket.socket]:
        """Wait for the processes 1 to ``count - 1``; returns their sockets.

        Raises:
            TimeoutError: Some did not come.
        """
        self._socket.settimeout(_CONNECT)
        here: dict[int, socket.socket] = {}
        with self._socket:
            while len(here) < count - 1:
                peer, _ = self._socket.accept()
                peer.settimeout(_CONNECT)
                index = _handshake(peer, self.key)
                if index is None or index in here or not 0 < index < count:
                    peer.close()
                else:
                    here[index] = peer
        return here


def connect(host: str, port: int, key: str, index: int) -> socket.socket:
    """Connect to process 0.

    Raises:
        OSError: It cannot be reached.
    """
    connected = socket.create_connection((host, port), timeout=_CONNECT)
    connected.sendall(f"{key} {index:08d}".encode())
    return connected


def _handshake(peer: socket.socket, key: str) -> int | None:
    """The index of who connected; None for somebody else."""
    length = len(key) + 9
    try:
        said = peer.recv(length, socket.MSG_WAITALL).decode()
    except (OSError, ValueError):
        return None
    if len(said) != length or not hmac.compare_digest(said[: len(key)], key):
        return None
    return int(said[-8:]) if said[-8:].isdigit() else None


class Mailbox:
    """What came from the others, by topic and sender, in order."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], queue.SimpleQueue[Encoded]] = defaultdict(
            queue.SimpleQueue
        )
        self._lock = threading.Lock()
        self._ended: dict[int, BaseException] = {}

    def put(self, topic: str, sender: int, body: Encoded) -> None:
        self._queue(topic, sender).put((body, None))

    def end(self, sender: int, error: BaseException) -> None:
        """Nothing comes from this sender any more; whoever waits for it gets this."""
        with self._lock:
            self._ended[sender] = error
            waiting = [q for (_, who), q in self._queues.items() if who == sender]
        for each in waiting:
            each.put((None, error))

    def get(self, topic: str, sender: int) -> Encoded:
        """The next message, waited for."""
        incoming = self._queue(topic, sender)
        body, error = incoming.get()
        if error is not None:
            incoming.put((None, error))  # for who asks again
            raise error
        return body

    def _queue(self, topic: str, sender: int) -> "queue.SimpleQueue[Encoded]":
        with self._lock:
            known = (topic, sender) in self._queues
            found = self._queues[topic, sender]
            if not known and sender in self._ended:
                found.put((None, self._ended[sender]))
        return found
