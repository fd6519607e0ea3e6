"""The processes of one training: what process 0 decides, and what all contribute.

Every process runs the same script. Where they have to do the same, process 0 decides
and the others are told; where each has a part, process 0 collects them. One process
alone is told what it says itself.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from resilient.distributed.channel import Connection, Mailbox
from resilient.distributed.peer_watchdog import PeerLossWatchdog
from resilient.errors import PeerLostError
from resilient.serialization import Encoded

_LOST = "lost"  # what process 0 says to the others, with who and why
_HEARING = 1.0  # seconds until the end of a process is known to the others


class Group(Protocol):
    """What a process knows of the others.

    Attributes:
        index: Its own number, from 0.
        count: How many there are.
    """

    index: int
    count: int

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        """What process 0 says: it says ``value``; the others wait and get it.

        Raises:
            PeerLostError: The other process is not there any more.
        """

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        """What every process says, by index, at process 0; elsewhere an empty list.

        Raises:
            PeerLostError: Another process is not there any more.
        """

    def request(self, wish: Encoded) -> None:
        """Send process 0 a wish, which it sees when it looks."""

    def take_requests(self) -> list[Encoded]:
        """What the others asked of process 0 since it looked last."""

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Makes a library's error a PeerLostError where that is why it came."""


class Alone:
    """One process, with nobody to agree with."""

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
    """Several processes, connected. A context, left by all together.

    Args:
        index: Number of this process.
        count: How many there are.
        connect: Makes a connection to each that this one has to do with: process 0 to
            all others, these to process 0. Takes what a ``Connection`` calls.
    """

    def __init__(
        self,
        index: int,
        count: int,
        connect: Callable[
            [
                Callable[[int, dict[str, Encoded]], None],
                Callable[[int, str | None], None],
            ],
            list[Connection],
        ],
    ) -> None:
        self.index, self.count = index, count
        self._inbox = Mailbox()
        self._wishes: list[Encoded] = []
        self._last_word = PeerLossWatchdog()
        self._connections = connect(self._received, self._lost)

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        if self.index:
            return self._inbox.get(topic, 0)
        for each in self._connections:
            each.send({"to": topic, "body": value})
        return value

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        if self.index:
            self._connections[0].send({"to": topic, "body": value})
            return []
        others = range(1, self.count)
        return [value, *(self._inbox.get(topic, other) for other in others)]

    def request(self, wish: Encoded) -> None:
        self._connections[0].send({"to": "wish", "body": wish})

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
            # What a library says of a connection that broke is hard to understand.
            lost = self._last_word.heard_within(_HEARING)
            if lost is None or _first_line(error) in str(lost):
                raise  # that, or all found the same, each by itself
            raise lost from error

    def __enter__(self) -> "Together":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        why = None
        try:
            if error is None:
                self.gather("end")
                self.broadcast("end")
            else:
                why = _first_line(error)
        finally:
            self._last_word.not_needed()
            for each in self._connections:
                each.leave(why)

    def _received(self, sender: int, message: dict[str, Encoded]) -> None:
        if message["to"] == "wish":
            self._wishes.append(message["body"])
        elif message["to"] == _LOST:
            self._last_word.arm(self._peer_lost(*message["body"]))
        else:
            self._inbox.put(message["to"], sender, message["body"])

    def _lost(self, sender: int, why: str | None) -> None:
        error = self._peer_lost(sender, why or "it ended its fit")
        self._inbox.end(sender, error)
        if why is None:
            return
        self._last_word.arm(error)
        # This process may still wait for a third one, which waits for the lost one.
        for each in self._connections if self.index == 0 else ():
            each.send({"to": _LOST, "body": [sender, why]})

    def _peer_lost(self, sender: int, why: str) -> PeerLostError:
        return PeerLostError(
            "Another process of this training is not there any more, and without "
            "it the others cannot go on.",
            received=f"process {sender} of {self.count}: {why}",
            hint="Start all processes again: they resume from the last checkpoint. "
            "`resilient run` does that by itself.",
        )


def _first_line(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):  # nobody knows what for
        return "it left its loop"
    return f"{type(error).__name__}: {error}".partition("\n")[0]
