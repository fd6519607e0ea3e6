"""Lets the other processes connect to process 0.

Both ends prove by ``multiprocessing.connection`` that they know a key, which the others
received through a collective of their library. Each connection has a thread for that:
strangers keep nobody waiting, as they would in ``Listener.accept`` of that module.
"""

import contextlib
import logging
import secrets
import socket
import threading
import time
from ipaddress import ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge

from resilient.distributed.channel import frames

logger = logging.getLogger(__name__)

_CONNECT = 60.0  # seconds for all processes to connect
_HANDSHAKE = 5.0  # seconds to answer
_POLL = 0.02  # seconds
_BACKLOG = 128  # pending connections

# What a handshake with a stranger ends with.
_REFUSED = (OSError, EOFError, ValueError, AssertionError, AuthenticationError)


class Listener:
    """Accepts the other processes at process 0; closed once all have connected.

    Args:
        host: The address of process 0, as the others know it.
    """

    def __init__(self, host: str) -> None:
        self.key = secrets.token_hex(16)
        self._socket = _listening_socket(host)
        self.port = int(self._socket.getsockname()[1])

    def accept_all(self, count: int) -> dict[int, socket.socket]:
        """Wait for processes 1 to ``count - 1``, and return their sockets.

        Raises:
            TimeoutError: Some did not connect.
        """
        accepted: dict[int, socket.socket] = {}
        until = time.monotonic() + _CONNECT
        self._socket.settimeout(_POLL)
        with self._socket:
            while len(accepted) < count - 1:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    args = (self._socket.accept()[0], count, accepted)
                    threading.Thread(target=self._admit, args=args, daemon=True).start()
                if time.monotonic() > until:
                    missing = min(set(range(1, count)) - accepted.keys())
                    for peer in accepted.values():
                        peer.close()
                    raise TimeoutError(f"process {missing} did not connect")
        return accepted

    def _admit(
        self, peer: socket.socket, count: int, accepted: dict[int, socket.socket]
    ) -> None:
        """Add a connection to the accepted ones if it is one of our processes."""
        with contextlib.suppress(*_REFUSED), frames(peer, _HANDSHAKE) as connection:
            # In this order: who knows no key cannot let us answer its own challenge.
            deliver_challenge(connection, self.key.encode())
            answer_challenge(connection, self.key.encode())
            index = int(connection.recv_bytes(20))
            if 0 < index < count and accepted.setdefault(index, peer) is peer:
                return
        peer.close()


def connect(host: str, port: int, key: str, index: int) -> socket.socket:
    """Connect to process 0.

    Raises:
        OSError, EOFError: It cannot be reached.
        AuthenticationError: It does not know the key.
    """
    with (
        socket.create_connection((host, port), timeout=_CONNECT) as connected,
        frames(connected, _CONNECT) as connection,
    ):
        answer_challenge(connection, key.encode())
        deliver_challenge(connection, key.encode())
        connection.send_bytes(str(index).encode())
        return connected.dup()


def _listening_socket(host: str) -> socket.socket:
    """A socket that listens where the others look for process 0."""
    with contextlib.suppress(OSError, UnicodeError):  # no address, or not one of ours
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, *_, address = found[0]
        # Many machines resolve their own name to 127.0.1.1; others resolve it
        # differently.
        known = "localhost" in host or host == address[0]
        if known or not ip_address(address[0]).is_loopback:
            return socket.create_server(address, family=family, backlog=_BACKLOG)
    logger.warning(
        "Process 0 listens on all addresses of this machine, because %r, where the "
        "others look for it, is not one of them.",
        host,
    )
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(
        ("", 0), family=family, dualstack_ipv6=both, backlog=_BACKLOG
    )
