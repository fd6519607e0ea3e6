"""Lets the other processes connect to process 0.

They present a key, which they received through a collective of their library. Every
connection has some seconds for that, concurrently: strangers keep nobody waiting.
"""

import contextlib
import hmac
import logging
import secrets
import selectors
import socket
import time
from ipaddress import ip_address
from typing import Any

logger = logging.getLogger(__name__)

_CONNECT = 60.0  # seconds, from one of our processes to the next
_HANDSHAKE = 5.0  # seconds to present the key
_STRANGERS = 128  # unauthenticated connections allowed, besides those we wait for
_DIGITS = 8  # of a process's index
_BACKLOG = 128  # pending connections


class Listener:
    """Accepts the other processes at process 0; closed once all have connected.

    Args:
        host: The address of process 0, as the others know it.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(16)
        self._doors = _doors(host)
        self.port = int(self._doors[0].getsockname()[1])

    def accept_all(self, count: int) -> dict[int, socket.socket]:
        """Wait for processes 1 to ``count - 1``, and return their sockets.

        Raises:
            TimeoutError: Some did not connect.
        """
        accepted: dict[int, socket.socket] = {}
        until = time.monotonic() + _CONNECT
        with _Strangers(self._doors, self.key, count + _STRANGERS) as strangers:
            while len(accepted) < count - 1:
                for index, peer in strangers.listen(_HANDSHAKE):
                    if index in accepted or not 0 < index < count:
                        peer.close()
                        continue
                    accepted[index] = peer
                    until = time.monotonic() + _CONNECT
                if time.monotonic() > until:
                    missing = min(set(range(1, count)) - accepted.keys())
                    for peer in accepted.values():
                        peer.close()
                    raise TimeoutError(f"process {missing} did not connect")
        return accepted


def connect(host: str, port: int, key: str, index: int) -> socket.socket:
    """Connect to process 0.

    Raises:
        OSError: It cannot be reached.
    """
    connected = socket.create_connection((host, port), timeout=_CONNECT)
    connected.sendall(f"{key} {index:0{_DIGITS}d}".encode())
    return connected


class _Strangers:
    """Connections that have not presented the key; a context, which closes them all.

    Args:
        doors: The listening sockets.
        key: The key to present.
        most: How many are allowed; beyond that, the oldest is closed.
    """

    def __init__(self, doors: list[socket.socket], key: str, most: int) -> None:
        self._doors, self._key, self._most = doors, key.encode() + b" ", most
        self._selector = selectors.DefaultSelector()
        # When each connected and what it sent, oldest first.
        self._here: dict[socket.socket, tuple[float, bytearray]] = {}

    def __enter__(self) -> "_Strangers":
        for door in self._doors:
            door.setblocking(False)
            self._selector.register(door, selectors.EVENT_READ)
        return self

    def __exit__(self, *error: object) -> None:
        self._selector.close()
        for each in (*self._here, *self._doors):
            each.close()

    def listen(self, seconds: float) -> list[tuple[int, socket.socket]]:
        """Wait for news: yields indices and sockets of those that presented the key."""
        ready = {key.fileobj for key, _ in self._selector.select(seconds)}
        found = [self._hear(each) for each in [*self._here] if each in ready]
        for door in self._doors:
            if door in ready:
                self._let_in(door)
        now = time.monotonic()
        for each, (came, _) in [*self._here.items()]:
            if len(self._here) > self._most or now - came > _HANDSHAKE:
                self._dismiss(each).close()
        return [each for each in found if each is not None]

    def _let_in(self, door: socket.socket) -> None:
        with contextlib.suppress(
            BlockingIOError, ConnectionError
        ):  # it disconnected again
            peer, _ = door.accept()
            peer.setblocking(False)
            self._selector.register(peer, selectors.EVENT_READ)
            self._here[peer] = time.monotonic(), bytearray()

    def _dismiss(self, peer: socket.socket) -> socket.socket:
        self._selector.unregister(peer)
        del self._here[peer]
        return peer

    def _hear(self, peer: socket.socket) -> tuple[int, socket.socket] | None:
        """Read no more than the key: messages may follow."""
        _, said = self._here[peer]
        length = len(self._key) + _DIGITS
        try:
            said += (part := peer.recv(length - len(said)))
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        if part and len(said) < length:
            return None
        shown, index = bytes(said[:-_DIGITS]), bytes(said[-_DIGITS:])
        if hmac.compare_digest(shown, self._key) and index.isdigit():
            return int(index), self._dismiss(peer)
        self._dismiss(peer).close()
        return None


def _doors(host: str) -> list[socket.socket]:
    """Sockets listening where the others look for process 0, all on one port."""
    doors: list[socket.socket] = []
    for family, (where, _, *scope) in _addresses(host):
        address = (where, doors[0].getsockname()[1] if doors else 0, *scope)
        with contextlib.suppress(OSError):  # not one of ours, or a duplicate
            doors.append(socket.create_server(address, family=family, backlog=_BACKLOG))
    if not doors:
        logger.warning(
            "Process 0 listens on all addresses of this machine, because %r, where "
            "the others look for it, is not one of them.",
            host,
        )
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        doors = [
            socket.create_server(
                ("", 0), family=family, dualstack_ipv6=both, backlog=_BACKLOG
            )
        ]
    return doors


def _addresses(host: str) -> list[tuple[int, Any]]:
    """Families and addresses that a host name resolves to for everyone."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [
        (family, address)
        for family, _, _, _, address in found
        # Many machines resolve their own name to 127.0.1.1; others resolve it
        # differently.
        if "localhost" in host
        or host == address[0]
        or not ip_address(address[0]).is_loopback
    ]
