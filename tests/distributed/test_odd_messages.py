"""What another process sends and never should: the caller is told, whatever it is."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from resilient.distributed import channel
from resilient.distributed.group import Together
from resilient.errors import PeerLostError

pytestmark = pytest.mark.once


@dataclass
class Peer:
    """Process 1: its end of the connection, and that of process 0."""

    end: socket.socket
    frames: Connection
    other_end: socket.socket

    def says(self, *messages: bytes) -> None:
        for message in messages:
            self.frames.send_bytes(message)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_connection(door.getsockname()) as end,
        channel.frames(end, 20) as frames,
        door.accept()[0] as other_end,
    ):
        yield Peer(end, frames, other_end)


def told(peer: Peer) -> str:
    """What process 0 is told, which waits for process 1."""
    together = Together(0, 2, {1: peer.other_end})
    with pytest.raises(PeerLostError) as raised, together.joined():
        together.gather("never")
    return str(raised.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Expecting value"),
        (b"hello", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "not enough values"),
        (b"5", "cannot unpack non-iterable int"),
        (b'["x"]', "not enough values"),
        (b'["x", 1, 2]', "too many values"),
        (b'[["x"], 5]', "unhashable type"),
        (b'["\xff\xfe"]', "can't decode byte 0xff"),
        (b"[" * 200_000, "recursion"),
        (b'["x", ' + b"[" * 200_000, "recursion"),
        (b'["x", ' + b"9" * 10_000 + b"]", "integer string"),
        (b'["lost", null]', "must be an iterable"),
        (b'["lost", [1]]', "missing 1 required positional argument"),
    ],
)
def test_what_is_no_message_ends_the_connection(peer, data, why):
    peer.says(data)
    said = told(peer)
    assert "Another process of this training is gone" in said
    assert "process 1 of 2: its message cannot be handled (" in said
    assert why in said
    assert len(said) < 1000


class Touch:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self._path),)


def test_nothing_is_unpickled(peer, tmp_path):
    peer.frames.send(Touch(tmp_path / "made"))
    assert "its message cannot be handled (" in told(peer)
    assert list(tmp_path.iterdir()) == []


def test_a_message_without_end_is_not_read_to_its_end(peer, monkeypatch):
    monkeypatch.setattr(channel, "_LONGEST", 1000)
    peer.end.sendall((1001).to_bytes(4, "big") + b"x" * 500)
    assert "the connection broke (bad message length)" in told(peer)


def test_the_longest_message_is_read(peer, monkeypatch):
    monkeypatch.setattr(channel, "_LONGEST", 1000)
    longest = b'["x","' + b"x" * (1000 - len(b'["x",""]')) + b'"]'
    peer.says(longest, b'["farewell","it was read"]')
    assert "process 1 of 2: it was read" in told(peer)


def test_requests_arrive_in_order(peer):
    together = Together(0, 2, {1: peer.other_end})
    peer.says(*[json.dumps(["request", n]).encode() for n in range(3)], b'["x", 1]')
    assert together.gather("x") == [None, 1]
    assert together.take_requests() == [0, 1, 2]
    assert together.take_requests() == []
    peer.says(b'["farewell", "it was its end"]')
    with pytest.raises(PeerLostError, match="it was its end"), together.joined():
        together.gather("never")


def test_an_error_of_our_own_is_told_too(peer, monkeypatch):
    def broken(*_: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr(Together, "_received", broken)
    peer.says(b'["x", 1]')
    assert "its message cannot be handled (MemoryError: too much)" in told(peer)


def test_a_message_that_breaks_off_is_an_end(peer):
    peer.end.sendall((20).to_bytes(4, "big") + b'["farewell"')
    peer.end.shutdown(socket.SHUT_WR)
    assert "the connection broke (got end of file during message)" in told(peer)


def test_a_message_that_stops_in_the_middle_is_silence(peer, monkeypatch):
    monkeypatch.setenv("RESILIENT_PEER_TIMEOUT", "2.1")
    peer.end.sendall((20).to_bytes(4, "big") + b'["farewell"')
    assert "it sent no heartbeat for 2.1 seconds" in told(peer)
