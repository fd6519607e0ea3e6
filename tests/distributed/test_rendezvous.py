"""How the processes of a training come in, and how strangers are kept from harm."""

import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from support.processes import started

from resilient.distributed import channel, rendezvous
from resilient.distributed.rendezvous import accept_all, connect, listening_socket

pytestmark = pytest.mark.once


class Waiting:
    """A listener that waits for two others, in a thread."""

    def __init__(self, host: str = "127.0.0.1", count: int = 3) -> None:
        self.door, self.key = listening_socket(host), "0123456789abcdef" * 2
        self.port = self.door.getsockname()[1]
        self.accepted: dict[int, socket.socket] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, args=(count,), daemon=True)
        self._thread.start()

    def _wait(self, count: int) -> None:
        try:
            self.accepted = accept_all(self.door, self.key, count)
        except BaseException as error:
            self.error = error

    def end(self) -> dict[int, socket.socket]:
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.accepted


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opened."""
    with contextlib.ExitStack() as stack:
        yield stack


def arrive(waiting: Waiting, opened: contextlib.ExitStack, host="127.0.0.1") -> None:
    """Both come, say something at once, and are heard."""
    for index in (1, 2):
        peer = opened.enter_context(connect(host, waiting.port, waiting.key, index))
        peer.sendall(b"hello %d" % index)
    accepted = waiting.end()
    assert sorted(accepted) == [1, 2]
    for index, peer in accepted.items():
        opened.enter_context(peer).settimeout(20)
        assert peer.recv(7, socket.MSG_WAITALL) == b"hello %d" % index


def stranger(waiting: Waiting, opened: contextlib.ExitStack) -> socket.socket:
    address = ("127.0.0.1", waiting.port)
    return opened.enter_context(socket.create_connection(address, timeout=20))


def is_sent_away(peer: socket.socket) -> bool:
    """Whether nothing but a challenge comes, and then the end."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := peer.recv(1000):
            data += part
    return data == b"" or b"#CHALLENGE#" in data[:20]


def test_strangers_who_say_nothing_keep_nobody_waiting(opened):
    waiting = Waiting()
    silent = [stranger(waiting, opened) for _ in range(3)]
    silent[0].sendall(b"half of what")
    arrive(waiting, opened)


def challenged(waiting: Waiting, opened: contextlib.ExitStack) -> Connection:
    """A stranger's end of a connection, whose challenge has come."""
    peer = stranger(waiting, opened)
    frames = opened.enter_context(channel.frames(peer, 20))
    assert frames.recv_bytes().startswith(b"#CHALLENGE#")
    return frames


def is_closed(frames: Connection) -> bool:
    try:
        frames.recv_bytes()
    except (EOFError, ConnectionError):
        return True
    return False


@pytest.mark.parametrize("said", [b"", b"x" * 16, b"{sha256}" + b"x" * 32, b"x" * 99])
def test_who_does_not_know_the_key_is_refused(opened, said):
    waiting = Waiting()
    frames = challenged(waiting, opened)
    frames.send_bytes(said)
    assert frames.recv_bytes() == b"#FAILURE#"
    assert is_closed(frames)
    arrive(waiting, opened)


def test_another_key_is_refused(opened):
    waiting = Waiting()
    with pytest.raises(AuthenticationError):
        connect("127.0.0.1", waiting.port, "0" * 32, 1)
    arrive(waiting, opened)


def test_a_stranger_cannot_have_its_challenge_answered(opened):
    """It could pass the answer on, as its own, in another connection."""
    waiting = Waiting()
    frames = challenged(waiting, opened)
    frames.send_bytes(b"#CHALLENGE#" + b"x" * 20)
    assert frames.recv_bytes() == b"#FAILURE#"
    arrive(waiting, opened)


@pytest.mark.parametrize("index", [0, 3, -1, "x", "9" * 21])
def test_who_is_no_process_of_ours_is_sent_away(opened, index):
    waiting = Waiting()
    peer = connect("127.0.0.1", waiting.port, waiting.key, index)
    assert is_sent_away(opened.enter_context(peer))
    arrive(waiting, opened)


@pytest.mark.parametrize("head", [b"x" * 4, b"\xff" * 4 + b"x" * 8, b"\xff\xff\xff\0"])
def test_who_talks_without_end_is_sent_away(opened, head):
    waiting = Waiting()
    peer = stranger(waiting, opened)
    with contextlib.suppress(ConnectionError):
        peer.sendall(head + b"x" * 2**24)
    with contextlib.suppress(ConnectionError):
        while peer.recv(2**16):
            pass
    arrive(waiting, opened)


def test_an_impostor_is_found_out(opened):
    """A process of ours does not take part in what one without the key decides."""
    door = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

    def impostor() -> None:
        with door.accept()[0] as peer, channel.frames(peer, 20) as frames:
            frames.send_bytes(b"#CHALLENGE#" + b"x" * 20)
            frames.recv_bytes()
            frames.send_bytes(b"#WELCOME#")
            frames.recv_bytes()
            frames.send_bytes(b"x" * 16)
            is_closed(frames)

    thread = threading.Thread(target=impostor, daemon=True)
    thread.start()
    with pytest.raises(AuthenticationError):
        connect("127.0.0.1", door.getsockname()[1], "0" * 32, 1)
    thread.join(20)


def test_a_stranger_has_some_seconds(opened, monkeypatch):
    monkeypatch.setattr(rendezvous, "_HANDSHAKE", 0.05)
    waiting = Waiting()
    assert is_sent_away(stranger(waiting, opened))
    arrive(waiting, opened)


def test_many_strangers_keep_nobody_waiting(opened):
    waiting = Waiting()
    for _ in range(200):
        stranger(waiting, opened)
    arrive(waiting, opened)


def test_of_two_with_one_number_one_is_sent_away(opened):
    waiting = Waiting()
    for index in (1, 1, 2):
        opened.enter_context(connect("127.0.0.1", waiting.port, waiting.key, index))
    accepted = waiting.end()
    assert sorted(accepted) == [1, 2]
    for peer in accepted.values():
        peer.close()


def test_who_does_not_come_is_named_and_strangers_give_no_time(opened, monkeypatch):
    monkeypatch.setattr(rendezvous, "_CONNECT", 0.1)
    monkeypatch.setattr(rendezvous, "_HANDSHAKE", 0.05)
    waiting = Waiting()
    peer = opened.enter_context(connect("127.0.0.1", waiting.port, waiting.key, 1))
    stranger(waiting, opened)
    with pytest.raises(TimeoutError, match="process 2 did not connect"):
        waiting.end()
    peer.settimeout(20)
    assert is_sent_away(peer)


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=20).close()
    except OSError:
        return False
    return True


def own_address() -> str:
    """The address of a network interface, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outwards:
        try:
            outwards.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        return outwards.getsockname()[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_it_listens_nowhere_else_on_this_machine(opened, host, caplog):
    waiting = Waiting(host)
    assert not reaches("127.0.0.3", waiting.port)
    assert not reaches(own_address(), waiting.port)
    arrive(waiting, opened, host)
    assert not caplog.records


def test_it_listens_at_the_address_of_an_interface(opened, caplog):
    host = own_address()
    waiting = Waiting(host)
    assert not reaches("127.0.0.1", waiting.port)
    arrive(waiting, opened, host)
    assert not caplog.records


def test_it_listens_at_an_address_of_ipv6(opened, caplog):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    waiting = Waiting("::1")
    assert not reaches("127.0.0.1", waiting.port)
    arrive(waiting, opened, "::1")
    assert not caplog.records


@pytest.mark.parametrize("host", ["192.0.2.1", "", "no.such.name.invalid", "x" * 99])
def test_an_address_that_is_not_its_own_is_told(opened, host, caplog, monkeypatch):
    """Of a container, say, behind its host's address."""
    with caplog.at_level(logging.WARNING):
        waiting = Waiting(host)
    assert f"listens on all addresses of this machine, because {host!r}" in caplog.text
    assert waiting.key not in caplog.text
    arrive(waiting, opened)


def test_a_name_that_is_loopback_to_this_machine_only(opened, caplog, monkeypatch):
    """Debian writes 127.0.1.1 for the machine's name; the others know its address."""
    found = [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        waiting = Waiting("node1")
    assert "because 'node1', where the others look for it" in caplog.text
    assert reaches(own_address(), waiting.port)
    arrive(waiting, opened)


def test_nobody_sees_the_key(tmp_path: Path):
    """In lists of processes, in what they print, or in the directory."""
    directory = tmp_path / "run"
    directory.mkdir()
    body = (
        "print('met')\ngroup.broadcast('never') if group.index else group.gather('x')"
    )
    with started(body, 2, directory) as processes:
        for process in processes:
            assert process.line() == "met"
        key = json.loads(directory.with_suffix(".place").read_text())[1]
        listed = [
            (Path(f"/proc/{process.pid}") / name).read_bytes()
            for process in processes
            for name in ("cmdline", "environ")
            if Path("/proc/self").exists()
        ]
        processes[1].send(signal.SIGKILL)
        said = [process.end()[1] for process in processes]
    assert "PeerLostError" in said[0]
    assert len(key) == 32
    assert all(key not in text for text in said)
    assert all(key.encode() not in text for text in listed)
    assert list(directory.iterdir()) == []
