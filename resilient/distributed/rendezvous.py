"""Connects the processes of one training, and checks that they share a directory.

Process 0 listens on a port and broadcasts its number through a collective of the
library; the others connect. Then process 0 creates a file in the checkpoint directory:
a process that does not see it has a different directory of the same name.
"""

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.distributed.group import ALONE, Group, Together
from resilient.distributed.listener import Listener, connect
from resilient.errors import NotSupportedError, PeerLostError
from resilient.storage.layout import shared_name

if TYPE_CHECKING:  # loads Keras, which nothing here does
    from resilient.distributed.strategies.base import ParallelStrategy

_SEEN_WITHIN = 10.0  # seconds: network file systems cache missing files


@contextlib.contextmanager
def join(parallel: "ParallelStrategy", directory: Path) -> Iterator[Group]:
    """Connect the processes that train together, while entered.

    Args:
        parallel: How they train.
        directory: The checkpoint directory, which exists in each process.

    Raises:
        PeerLostError: Some did not connect.
        NotSupportedError: They do not share the directory.
    """
    if parallel.count == 1:
        yield ALONE
        return
    group = Together(parallel.index, parallel.count, _connected(parallel))
    with group.joined():
        _require_shared(group, directory)
        try:
            yield group
        except PeerLostError:
            parallel.peer_lost()
            raise


def _connected(parallel: "ParallelStrategy") -> dict[int, socket.socket]:
    """Sockets by peer: process 0 has one to each of the others."""
    try:
        if parallel.index == 0:
            listener = Listener(parallel.host)
            parallel.broadcast(json.dumps([listener.port, listener.key]))
            return listener.accept_all(parallel.count)
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


def _require_shared(group: Group, directory: Path) -> None:
    mark = directory / shared_name(secrets.token_hex(8))
    if group.index == 0:
        mark.touch()
    try:
        name, where = group.broadcast("directory", [mark.name, _place(directory)])
        missing = None if _appears(directory / name) else _place(directory)
        seen = group.gather("seen", missing)
        blind = group.broadcast("blind", [place for place in seen if place is not None])
    finally:
        if group.index == 0:
            mark.unlink(missing_ok=True)
    if blind:
        raise NotSupportedError(
            "The processes do not share the checkpoint directory, so parts of a "
            "checkpoint would end up in several places.",
            received=f"what process 0 wrote in {where} is missing in "
            f"{'; '.join(blind)}",
            hint="Use a checkpoint_dir (of a run in an object store: a local_dir) on a "
            "file system that all hosts have mounted at the same path.",
        )


def _appears(path: Path) -> bool:
    until = time.monotonic() + _SEEN_WITHIN
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _place(directory: Path) -> str:
    return f"{directory} on {socket.gethostname()}"
