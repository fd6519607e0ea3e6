"""Keeps received messages until somebody asks for them."""

import threading
from collections import Counter, defaultdict, deque

from resilient.distributed.messages import MOST, OddMessageError
from resilient.serialization import Encoded


class Mailbox:
    """Messages from the others, by topic and sender, in order."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, int], deque[Encoded]] = defaultdict(deque)
        self._waiting: Counter[int] = Counter()  # by sender
        self._ended: dict[int, BaseException] = {}
        self._changed = threading.Condition()

    def put(self, topic: str, sender: int, body: Encoded) -> None:
        """Keep a message.

        Raises:
            OddMessageError: Too many messages from this sender are waiting.
        """
        with self._changed:
            if self._waiting[sender] >= MOST:
                raise OddMessageError(f"over {MOST:,} messages that nobody asked for")
            self._waiting[sender] += 1
            self._messages[topic, sender].append(body)
            self._changed.notify_all()

    def end(self, sender: int, error: BaseException) -> None:
        """No more messages come from this sender: ``get`` raises this error."""
        with self._changed:
            self._ended[sender] = error
            self._changed.notify_all()

    def get(self, topic: str, sender: int) -> Encoded:
        """Wait for the next message."""
        with self._changed:
            messages = self._messages[topic, sender]
            self._changed.wait_for(lambda: messages or sender in self._ended)
            if messages:
                self._waiting[sender] -= 1
                return messages.popleft()
            raise self._ended[sender]
