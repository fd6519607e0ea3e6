"""How the processes of one training find each other, and share a directory.

Process 0 opens a door and passes its number by a collective of the library; the others
knock. Then process 0 leaves a file in the checkpoint directory: who does not see it has
another directory of the same name.
"""

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resilient.distributed.channel import Connection, Listener, connect
from resilient.distributed.group import ALONE, Group, Together
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.errors import NotSupportedError, PeerLostError
from resilient.storage.layout import shared_name

_SEEN_WITHIN = 10.0  # seconds: network file systems remember what was not there


@contextlib.contextmanager
def join(parallel: ParallelStrategy, directory: Path) -> Iterator[Group]:
    """The processes that train together; while it is entered they are connected.

    Args:
        parallel: How they train.
        directory: The checkpoint directory, which exists in each process.

    Raises:
        PeerLostError: Some did not come.
        NotSupportedError: They do not share the directory.
    """
    if parallel.count == 1:
        yield ALONE
        return
    with Together(parallel.index, parallel.count, _connecting(parallel)) as group:
        _require_shared(group, directory)
        try:
            yield group
        except PeerLostError:
            parallel.peer_lost()
            raise


def _connecting(parallel: ParallelStrategy) -> Callable[..., list[Connection]]:
    def connect(received: Any, lost: Any) -> list[Connection]:
        try:
            return [
                Connection(each, peer, received, lost)
                for peer, each in _sockets(parallel).items()
            ]
        except OSError as error:
            raise PeerLostError(
                "The processes of this training do not reach each other.",
                received=(
                    f"process {parallel.index} of {parallel.count}, with process 0 on "
                    f"{parallel.host}: {type(error).__name__}: {error}"
                ),
                hint="Let them connect to any port of that host (a firewall may forbid "
                "it), and see whether all processes were started.",
            ) from error

    return connect


def _sockets(parallel: ParallelStrategy) -> dict[int, socket.socket]:
    if parallel.index == 0:
        door = Listener(parallel.host)
        parallel.broadcast(json.dumps({"port": door.port, "key": door.key}))
        return door.accept_all(parallel.count)
    said = json.loads(parallel.broadcast(""))
    return {0: connect(parallel.host, said["port"], said["key"], parallel.index)}


def _require_shared(group: Group, directory: Path) -> None:
    name = group.broadcast("directory", shared_name(secrets.token_hex(8)))
    here = directory / name
    if group.index == 0:
        here.touch()
    try:
        group.broadcast("look")
        seen = group.gather("seen", None if _is_there(here) else _place(directory))
        blind = [where for where in seen if where is not None]
        where, blind = group.broadcast("blind", [_place(directory), blind])
    finally:
        if group.index == 0:
            here.unlink(missing_ok=True)
    if blind:
        raise NotSupportedError(
            "The processes do not share the checkpoint directory: a checkpoint "
            "would have parts in several places.",
            received=f"what process 0 wrote in {where} is not there in "
            f"{'; '.join(blind)}",
            hint="Use a checkpoint_dir on a file system that all hosts have mounted, "
            "by the same path.",
        )


def _is_there(path: Path) -> bool:
    until = time.monotonic() + _SEEN_WITHIN
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _place(directory: Path) -> str:
    return f"{directory} on {socket.gethostname()}"
