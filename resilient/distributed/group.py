"""Exchanges decisions and contributions between the processes of one training.

Every process runs the same script. Process 0 decides for all and broadcasts its
decision, or gathers contributions. A single process gets its own values back.
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from resilient.distributed.channel import Connection
from resilient.distributed.mailbox import Mailbox
from resilient.distributed.messages import MOST, Message, OddMessageError, checked
from resilient.distributed.peer_watchdog import PeerLossWatchdog
from resilient.errors import PeerLostError
from resilient.serialization import Encoded

_WISH = "wish"
_LOST = "lost"  # what process 0 tells the others
_HEARING = 1.0  # seconds for the others to learn that a process ended


class Group(Protocol):
    """A process's connection to the others.

    Attributes:
        index: The number of this process, from 0.
        count: How many there are.
    """

    index: int
    count: int

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        """Return what process 0 called it with; the others wait for that.

        Raises:
            PeerLostError: The other process is gone.
        """

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        """Process 0 gets what every process called it with, by index; others get [].

        Raises:
            PeerLostError: Another process is gone.
        """

    def request(self, wish: Encoded) -> None:
        """Send process 0 a request, without waiting for an answer."""

    def take_requests(self) -> list[Encoded]:
        """In process 0, the requests that arrived since the last call."""

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Raise PeerLostError in place of an error that a lost peer caused."""


@dataclass(frozen=True)
class _Loss:
    """Which process is lost, and why."""

    process: int
    why: str


class Alone:
    """A single process, which has nobody to agree with."""

    index, count = 0, 1

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        return value

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        return [value]

    def request(self, wish: Encoded) -> None:
        raise AssertionError(wish)  # process 0 asks nobody

    def take_requests(self) -> list[Encoded]:
        return []

    def explained(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


ALONE = Alone()


class Together:
    """Several processes, connected.

    Args:
        index: Number of this process.
        count: How many there are.
        sockets: By peer: in process 0, those to all others; elsewhere, the one to
            process 0.
    """

    def __init__(
        self, index: int, count: int, sockets: Mapping[int, socket.socket]
    ) -> None:
        self.index, self.count = index, count
        self._inbox = Mailbox()
        self._wishes: list[Encoded] = []
        self._watchdog = PeerLossWatchdog()
        self._connections = [
            Connection(each, peer, self._received, self._lost)
            for peer, each in sockets.items()
        ]
        for connection in self._connections:
            connection.start()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """All processes leave it together; an error inside leaves at once."""
        why = None
        try:
            yield
        except BaseException as error:
            why = _first_line(error)
            raise
        else:
            self.gather("end")
            self.broadcast("end")
        finally:
            self._watchdog.not_needed()
            for each in self._connections:
                each.leave(why)

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        if self.index:
            return self._inbox.get(topic, 0)
        for each in self._connections:
            each.send(Message(topic, value))
        return value

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        if self.index:
            self._connections[0].send(Message(topic, value))
            return []
        others = range(1, self.count)
        return [value, *(self._inbox.get(topic, other) for other in others)]

    def request(self, wish: Encoded) -> None:
        self._connections[0].send(Message(_WISH, wish))

    def take_requests(self) -> list[Encoded]:
        if not self._wishes:  # asked before every batch
            return []
        found, self._wishes = self._wishes, []
        return found

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except PeerLostError:
            raise
        except Exception as error:
            # A library's own error about a broken connection is hard to understand.
            lost = self._watchdog.error_within(_HEARING)
            if lost is None or _first_line(error) in str(lost):
                raise  # no peer was lost, or all failed alike, independently
            raise lost from error

    def _received(self, sender: int, message: Message) -> None:
        if message.to == _WISH:
            if len(self._wishes) >= MOST:
                raise OddMessageError(f"over {MOST:,} wishes at a time")
            self._wishes.append(message.body)
        elif message.to == _LOST:
            loss = checked(_Loss, message.body)
            self._watchdog.arm(self._peer_lost(loss.process, loss.why))
        else:
            self._inbox.put(message.to, sender, message.body)

    def _lost(self, sender: int, why: str | None) -> None:
        error = self._peer_lost(sender, why or "it ended its fit")
        self._inbox.end(sender, error)
        if why is None:
            return
        self._watchdog.arm(error)
        # This process may still be waiting for a third one, which waits for the lost
        # one.
        loss = {"process": sender, "why": why}
        for each in self._connections if self.index == 0 else ():
            each.send(Message(_LOST, loss))

    def _peer_lost(self, sender: int, why: str) -> PeerLostError:
        return PeerLostError(
            "Another process of this training is gone, and the others cannot continue "
            "without it.",
            received=f"process {sender} of {self.count}: {why}",
            hint="Start all processes again: they resume from the last checkpoint. "
            "`resilient run` does that automatically.",
        )


def _first_line(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):  # which does not say why
        return "it left its loop"
    return f"{type(error).__name__}: {error}".partition("\n")[0]
