"""Connects the processes of one training, and checks that they share a directory.

Process 0 listens on a port, and broadcasts its number and a key through a collective of
the library. Both ends of a connection prove by ``multiprocessing.connection`` that they
know the key. Each connection has a thread for that: strangers keep nobody waiting, as
they would in ``Listener.accept`` of that module.

Then process 0 creates a file in the checkpoint directory: a process that does not see
it has a different directory of the same name.
"""

import contextlib
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.distributed.channel import frames
from resilient.distributed.group import Group, Together
from resilient.errors import NotSupportedError, PeerLostError
from resilient.storage.layout import shared_name

if TYPE_CHECKING:  # loads Keras, which nothing here does
    from resilient.distributed.strategies.base import ParallelStrategy

logger = logging.getLogger(__name__)

_CONNECT = 60.0  # seconds for all processes to connect
_HANDSHAKE = 5.0  # seconds for a stranger to answer
_POLL = 0.02  # seconds
_SEEN_WITHIN = 10.0  # seconds: network file systems cache missing files

# What a handshake with a stranger ends with.
_REFUSED = (OSError, EOFError, ValueError, AssertionError, AuthenticationError)

Sockets = dict[int, socket.socket]  # by the process at the other end


@contextlib.contextmanager
def join(parallel: "ParallelStrategy", directory: Path) -> Iterator[Group]:
    """Connect several processes that train together, while entered.

    Args:
        parallel: How they train.
        directory: The checkpoint directory, which exists in each process.

    Raises:
        PeerLostError: Some did not connect.
        NotSupportedError: They do not share the directory.
    """
    group = Together(parallel.index, parallel.count, _connected(parallel))
    with group.joined():
        _require_shared(group, directory)
        try:
            yield group
        except PeerLostError:
            parallel.peer_lost()
            raise


def _connected(parallel: "ParallelStrategy") -> Sockets:
    """Sockets by peer: process 0 has one to each of the others."""
    try:
        if parallel.index == 0:
            key, listening = secrets.token_hex(16), listening_socket(parallel.host)
            parallel.broadcast(json.dumps([listening.getsockname()[1], key]))
            return accept_all(listening, key, parallel.count)
        port, key = json.loads(parallel.broadcast(""))
        return {0: connect(parallel.host, port, key, parallel.index)}
    except (OSError, EOFError, AuthenticationError) as error:
        raise PeerLostError(
            "The processes of this training cannot reach each other.",
            received=(
                f"process {parallel.index} of {parallel.count}, with process 0 on "
                f"{parallel.host}: {type(error).__name__}: {error}"
            ),
            hint="Allow connections to any port of that host (a firewall may block "
            "them), and check that all processes were started.",
        ) from error


def listening_socket(host: str) -> socket.socket:
    """A socket that listens where the others look for process 0."""
    with contextlib.suppress(OSError, UnicodeError):  # no address, or not one of ours
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, *_, address = found[0]
        # Many machines resolve their own name to 127.0.1.1; others resolve it
        # differently.
        known = "localhost" in host or host == address[0]
        if known or not ip_address(address[0]).is_loopback:
            return socket.create_server(address, family=family)
    logger.warning(
        "Process 0 listens on all addresses of this machine, because %r, where the "
        "others look for it, is not one of them.",
        host,
    )
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=both)


def accept_all(listening: socket.socket, key: str, count: int) -> Sockets:
    """Wait for processes 1 to ``count - 1``, and return their sockets.

    Args:
        listening: The socket to which they connect; it is closed.
        key: The key that they know.
        count: How many processes there are.

    Raises:
        TimeoutError: Some did not connect.
    """
    accepted: Sockets = {}
    until = time.monotonic() + _CONNECT
    listening.settimeout(_POLL)
    with listening:
        while len(accepted) < count - 1:
            with contextlib.suppress(TimeoutError, ConnectionError):
                args = (listening.accept()[0], key.encode(), count, accepted)
                threading.Thread(target=_admit, args=args, daemon=True).start()
            if time.monotonic() > until:
                missing = min(set(range(1, count)) - accepted.keys())
                for peer in accepted.values():
                    peer.close()
                raise TimeoutError(f"process {missing} did not connect")
    return accepted


def _admit(peer: socket.socket, key: bytes, count: int, accepted: Sockets) -> None:
    """Add a connection to the accepted ones if it is one of our processes."""
    with contextlib.suppress(*_REFUSED), frames(peer, _HANDSHAKE) as connection:
        # In this order: who knows no key cannot let us answer its own challenge.
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
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


def _require_shared(group: Group, directory: Path) -> None:
    place = f"{directory} on {socket.gethostname()}"
    mark = directory / shared_name(secrets.token_hex(8))
    if group.index == 0:
        mark.touch()
    try:
        name, where = group.broadcast("directory", [mark.name, place])
        until = time.monotonic() + _SEEN_WITHIN
        while not (seen := (directory / name).exists()) and time.monotonic() < until:
            time.sleep(0.05)
        places = group.gather("seen", None if seen else place)
        missing = group.broadcast("missing", [each for each in places if each])
    finally:
        if group.index == 0:
            mark.unlink(missing_ok=True)
    if missing:
        raise NotSupportedError(
            "The processes do not share the checkpoint directory, so parts of a "
            "checkpoint would end up in several places.",
            received=f"what process 0 wrote in {where} is missing in "
            f"{'; '.join(missing)}",
            hint="Use a checkpoint_dir (of a run in an object store: a local_dir) on a "
            "file system that all hosts have mounted at the same path.",
        )
