"""A star of TCP connections with process 0 in the middle; a message is a line of JSON.

The library's collectives are left to the training: messages between them would have to
come at the same place in every process, and a writer's thread could not send any.

Every process sends a sign of life each second. If a connection ends without a farewell,
or is silent for too long, the other process is lost.
"""

import hmac
import json
import os
import secrets
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from resilient.errors import message
from resilient.serialization import Encoded

VARIABLE = "RESILIENT_PEER_TIMEOUT"
_TIMEOUT = 60.0
_SIGN_EVERY = 1.0  # seconds
_CONNECT = 60.0  # seconds

_SIGN, _LEFT = "sign", "left"


def peer_timeout() -> float:
    """Seconds without a sign of life after which a process counts as lost.

    Raises:
        ValueError: The environment variable is not such a number.
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
        lost: Called once, on that thread, with the reason, when the other process is
            lost or has left (None: its work was done).
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: int,
        received: Callable[[int, dict[str, Encoded]], None],
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
        """Begin to receive, and to send signs of life."""
        for run in (self._receive, self._give_signs):
            name = f"resilient-peer-{self.peer}"
            threading.Thread(target=run, name=name, daemon=True).start()

    def send(self, message: Mapping[str, Encoded]) -> None:
        """Send one message. If that fails, the receiving thread says so."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self._over.set()

    def leave(self, why: str | None) -> None:
        """Say goodbye, with the reason unless the work is done."""
        self._over.set()
        self.send({"to": _LEFT, "body": why})
        try:
            # Closing might discard what the other end has not read yet.
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _receive(self) -> None:
        why: str | None
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
    """Where process 0 waits for the others; closed once all have connected.

    Args:
        host: The address of process 0, as the others know it.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(16)
        local = host in ("localhost", "127.0.0.1")
        both = not local and socket.has_dualstack_ipv6()
        self._socket = socket.create_server(
            (host if local else "", 0),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=128,
        )
        self.port = int(self._socket.getsockname()[1])

    def accept_all(self, count: int) -> dict[int, socket.socket]:
        """Wait for the processes 1 to ``count - 1``; returns their sockets.

        Raises:
            TimeoutError: Some did not connect.
        """
        self._socket.settimeout(_CONNECT)
        accepted: dict[int, socket.socket] = {}
        with self._socket:
            while len(accepted) < count - 1:
                peer, _ = self._socket.accept()
                peer.settimeout(_CONNECT)
                index = _handshake(peer, self.key)
                if index is None or index in accepted or not 0 < index < count:
                    peer.close()
                else:
                    accepted[index] = peer
        return accepted


def connect(host: str, port: int, key: str, index: int) -> socket.socket:
    """Connect to process 0.

    Raises:
        OSError: It cannot be reached.
    """
    connected = socket.create_connection((host, port), timeout=_CONNECT)
    connected.sendall(f"{key} {index:08d}".encode())
    return connected


def _handshake(peer: socket.socket, key: str) -> int | None:
    """The index of the process that connected; None for a stranger."""
    length = len(key) + 9
    try:
        said = peer.recv(length, socket.MSG_WAITALL).decode()
    except (OSError, ValueError):
        return None
    if len(said) != length or not hmac.compare_digest(said[: len(key)], key):
        return None
    return int(said[-8:]) if said[-8:].isdigit() else None


class Mailbox:
    """Messages of the others, by topic and sender, in order."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, int], deque[Encoded]] = defaultdict(deque)
        self._ended: dict[int, BaseException] = {}
        self._changed = threading.Condition()

    def put(self, topic: str, sender: int, body: Encoded) -> None:
        with self._changed:
            self._messages[topic, sender].append(body)
            self._changed.notify_all()

    def end(self, sender: int, error: BaseException) -> None:
        """Nothing more comes from this sender: ``get`` raises this error."""
        with self._changed:
            self._ended[sender] = error
            self._changed.notify_all()

    def get(self, topic: str, sender: int) -> Encoded:
        """The next message, waited for."""
        with self._changed:
            messages = self._messages[topic, sender]
            self._changed.wait_for(lambda: messages or sender in self._ended)
            if messages:
                return messages.popleft()
            raise self._ended[sender]
