"""What another process sends and never should: the caller is told, whatever it is."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from resilient.distributed import channel, group, mailbox, messages
from resilient.distributed.group import Together
from resilient.errors import PeerLostError

pytestmark = pytest.mark.once


@dataclass
class Peer:
    """Process 1: its end of the connection, and that of process 0."""

    end: socket.socket
    other_end: socket.socket

    def says(self, *lines: bytes) -> None:
        self.end.sendall(b"\n".join((*lines, b"")))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_connection(door.getsockname()) as end,
        door.accept()[0] as other_end,
    ):
        yield Peer(end, other_end)


def told(peer: Peer) -> str:
    """What process 0 is told, which waits for process 1."""
    together = Together(0, 2, {1: peer.other_end})
    with pytest.raises(PeerLostError) as raised, together.joined():
        together.gather("never")
    return str(raised.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "Expected `object`, got `array`"),
        (b"5", "Expected `object`, got `int`"),
        (b'{"body": 5}', "Object missing required field `to`"),
        (b'{"to": 5}', "Expected `str`, got `int` - at `$.to`"),
        (b'{"to": ["x"], "body": 5}', "Expected `str`, got `array` - at `$.to`"),
        (b'{"to": "\xff\xfe"}', "can't decode byte 0xff"),
        (b"[" * 200_000, "recursion"),
        (b'{"to": "x", "body": ' + b"[" * 200_000, "recursion"),
        (b'{"to": "x", "body": ' + b"9" * 10_000 + b"}", "integer string"),
    ],
)
def test_what_is_no_message_ends_the_connection(peer, line, why):
    peer.says(line)
    said = told(peer)
    assert "Another process of this training is gone" in said
    assert "process 1 of 2: it sent something that is not one of our messages: " in said
    assert why in said
    assert repr(line[:90])[:-1] in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("to", "body", "why"),
    [
        ("left", 5, "a farewell whose reason is no text"),
        ("left", ["x"], "a farewell whose reason is no text"),
        ("lost", None, "Expected `object`, got"),
        ("lost", [1, "x"], "Expected `object`, got"),
        ("lost", {"process": "1", "why": "x"}, "Expected `int`, got `str`"),
        ("lost", {"process": 1}, "Object missing required field `why`"),
    ],
)
def test_a_message_to_us_must_have_what_belongs_to_it(peer, to, body, why):
    peer.says(json.dumps({"to": to, "body": body}).encode())
    assert f"process 1 of 2: it sent {why}" in told(peer)


def test_a_line_without_end_is_not_read_to_its_end(peer, monkeypatch):
    for module in (channel, messages):
        monkeypatch.setattr(module, "LONGEST", 1000)
    peer.end.sendall(b'{"to": "x", "body": "' + b"x" * 1000)
    assert "it sent a line of more than 1,000 bytes" in told(peer)


def test_the_longest_line_is_read(peer, monkeypatch):
    for module in (channel, messages):
        monkeypatch.setattr(module, "LONGEST", 1000)
    frame = len(b'{"to":"x","body":""}\n')
    longest = b'{"to":"x","body":"' + b"x" * (1000 - frame) + b'"}'
    peer.says(longest, b'{"to":"left","body":"it was read"}')
    assert "process 1 of 2: it was read" in told(peer)


def test_messages_that_nobody_asks_for_are_counted(peer, monkeypatch):
    monkeypatch.setattr(mailbox, "MOST", 3)
    peer.says(b'{"to": "x"}', b'{"to": "y"}', b'{"to": "x"}', b'{"to": "z"}')
    assert "it sent over 3 messages that nobody asked for" in told(peer)


def test_messages_that_were_taken_do_not_count(peer, monkeypatch):
    monkeypatch.setattr(mailbox, "MOST", 3)
    together = Together(0, 2, {1: peer.other_end})
    peer.says(*[b'{"to": "x"}'] * 3)
    for _ in range(20):
        assert together.gather("x") == [None, None]
        peer.says(b'{"to": "x"}')
    peer.says(b'{"to": "left", "body": "it was its end"}')
    with pytest.raises(PeerLostError, match="it was its end"), together.joined():
        together.gather("never")


def test_wishes_are_counted(peer, monkeypatch):
    monkeypatch.setattr(group, "MOST", 3)
    peer.says(*[b'{"to": "wish"}'] * 4)
    assert "it sent over 3 wishes at a time" in told(peer)


def test_an_error_of_our_own_is_told_too(peer, monkeypatch):
    def broken(*_: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr(mailbox.Mailbox, "put", broken)
    peer.says(b'{"to": "x"}')
    assert "its message cannot be handled (MemoryError: too much)" in told(peer)


def test_a_line_that_breaks_off_is_an_end(peer):
    peer.end.sendall(b'{"to": "left", "bo')
    peer.end.shutdown(socket.SHUT_WR)
    assert "it ended without reporting an error" in told(peer)
