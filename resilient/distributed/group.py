"""Exchanges decisions and contributions between the processes of one training.

Every process runs the same script. Process 0 decides for all and broadcasts its
decision, or gathers contributions. A single process gets its own values back.
"""

import contextlib
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

from resilient.distributed.channel import Channel
from resilient.distributed.peer_watchdog import PeerLossWatchdog
from resilient.errors import PeerLostError
from resilient.serialization import Encoded

_REQUEST = "request"
_LOST = "lost"  # process 0 passes on which process is lost, and why
_PEER_LOSS_WAIT = 1.0  # seconds for the others to learn that a process ended


class Group:
    """A process's connection to the others; as it is, a single process has no others.

    Attributes:
        index: The number of this process, from 0.
        count: How many there are.
    """

    index: int = 0
    count: int = 1

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        """Return what process 0 called it with; the others wait for that.

        Raises:
            PeerLostError: The other process is gone.
        """
        return value

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        """Process 0 gets what every process called it with, by index; others get [].

        Raises:
            PeerLostError: Another process is gone.
        """
        return [value]

    def request(self, value: Encoded) -> None:
        """Send process 0 a request, without waiting for an answer."""
        raise AssertionError(value)  # process 0 asks nobody

    def take_requests(self) -> list[Encoded]:
        """In process 0, the requests that arrived since the last call."""
        return []

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Raise PeerLostError in place of an error that a lost peer caused."""
        return contextlib.nullcontext()


ALONE = Group()


class Together(Group):
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
        # By topic and sender, in order; and why no more come from a sender.
        self._messages: dict[tuple[str, int], deque[Encoded]] = defaultdict(deque)
        self._ended: dict[int, PeerLostError] = {}
        self._changed = threading.Condition()
        self._requests = deque[Encoded]()
        self._watchdog = PeerLossWatchdog()
        self._channels = [
            Channel(each, peer, self._received, self._lost)
            for peer, each in sockets.items()
        ]
        for channel in self._channels:
            channel.start()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """All processes leave it together; an error inside leaves at once."""
        why = None
        try:
            yield
            self.gather("end")
            self.broadcast("end")
        except BaseException as error:
            why = _first_line(error)
            raise
        finally:
            self._watchdog.not_needed()
            for each in self._channels:
                each.leave(why)

    def broadcast(self, topic: str, value: Encoded = None) -> Encoded:
        if self.index:
            return self._next(topic, 0)
        for each in self._channels:
            each.send(topic, value)
        return value

    def gather(self, topic: str, value: Encoded = None) -> list[Encoded]:
        if self.index:
            self._channels[0].send(topic, value)
            return []
        return [value, *(self._next(topic, other) for other in range(1, self.count))]

    def request(self, value: Encoded) -> None:
        self._channels[0].send(_REQUEST, value)

    def take_requests(self) -> list[Encoded]:
        return [self._requests.popleft() for _ in range(len(self._requests))]

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except PeerLostError:
            raise
        except Exception as error:
            # A library's own error about a broken connection is hard to understand.
            lost = self._watchdog.error_within(_PEER_LOSS_WAIT)
            if lost is None or _first_line(error) in str(lost):
                raise  # no peer was lost, or all failed alike, independently
            raise lost from error

    def _next(self, topic: str, sender: int) -> Encoded:
        """Wait for the next message."""
        with self._changed:
            messages = self._messages[topic, sender]
            self._changed.wait_for(lambda: messages or sender in self._ended)
            if not messages:
                raise self._ended[sender]
            return messages.popleft()

    def _received(self, sender: int, topic: str, body: Encoded) -> None:
        if topic == _REQUEST:
            self._requests.append(body)
        elif topic == _LOST:
            self._watchdog.arm(self._peer_lost(*body))
        else:
            with self._changed:
                self._messages[topic, sender].append(body)
                self._changed.notify_all()

    def _lost(self, sender: int, why: str | None) -> None:
        error = self._peer_lost(sender, why or "it ended its fit")
        with self._changed:
            self._ended[sender] = error
            self._changed.notify_all()
        if why is None:
            return
        self._watchdog.arm(error)
        # This process may still be waiting for a third one, which waits for the lost
        # one.
        for each in self._channels if self.index == 0 else ():
            each.send(_LOST, [sender, why])

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
