"""How the processes of a training come in, and how strangers are kept from harm."""

import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import started

from resilient.distributed import listener
from resilient.distributed.listener import Listener, connect

pytestmark = pytest.mark.once


class Waiting:
    """A listener that waits for two others, in a thread."""

    def __init__(self, host: str = "127.0.0.1", count: int = 3) -> None:
        self.door = Listener(host)
        self.port, self.key = self.door.port, self.door.key
        self.accepted: dict[int, socket.socket] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, args=(count,), daemon=True)
        self._thread.start()

    def _wait(self, count: int) -> None:
        try:
            self.accepted = self.door.accept_all(count)
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
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


def test_strangers_who_say_nothing_keep_nobody_waiting(opened):
    waiting = Waiting()
    silent = [stranger(waiting, opened) for _ in range(3)]
    silent[0].sendall(b"half of what")
    arrive(waiting, opened)


@pytest.mark.parametrize(
    "said",
    [
        "x" * 100,
        "\N{LATIN SMALL LETTER E WITH ACUTE}" * 100,
        "0" * 32 + " 00000001",
        "{key} 0000000x",
        "{key} 00000000",
        "{key} 00000003",
        "{key}_00000001",
    ],
)
def test_who_shows_no_key_of_ours_is_sent_away(opened, said):
    waiting = Waiting()
    peer = stranger(waiting, opened)
    peer.sendall(said.format(key=waiting.key).encode())
    assert is_sent_away(peer)
    arrive(waiting, opened)


def test_who_talks_without_end_is_sent_away(opened):
    waiting = Waiting()
    peer = stranger(waiting, opened)
    with pytest.raises(ConnectionError):
        peer.sendall(b"x" * 2**28)
    arrive(waiting, opened)


def test_a_stranger_has_some_seconds(opened, monkeypatch):
    monkeypatch.setattr(listener, "_HANDSHAKE", 0.05)
    waiting = Waiting()
    assert is_sent_away(stranger(waiting, opened))
    arrive(waiting, opened)


def test_of_too_many_strangers_the_first_has_to_go(opened, monkeypatch):
    monkeypatch.setattr(listener, "_STRANGERS", 2)
    waiting = Waiting()  # two may be here, and as many as there are processes
    first, *_ = [stranger(waiting, opened) for _ in range(6)]
    assert is_sent_away(first)
    arrive(waiting, opened)


def test_who_has_come_is_not_replaced(opened):
    waiting = Waiting()
    opened.enter_context(connect("127.0.0.1", waiting.port, waiting.key, 1))
    again = opened.enter_context(connect("127.0.0.1", waiting.port, waiting.key, 1))
    again.settimeout(20)
    assert is_sent_away(again)
    opened.enter_context(connect("127.0.0.1", waiting.port, waiting.key, 2))
    accepted = waiting.end()
    assert sorted(accepted) == [1, 2]
    for peer in accepted.values():
        peer.close()


def test_who_does_not_come_is_named_and_strangers_give_no_time(opened, monkeypatch):
    monkeypatch.setattr(listener, "_CONNECT", 0.1)
    monkeypatch.setattr(listener, "_HANDSHAKE", 0.05)
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


def test_it_listens_at_all_addresses_of_a_name(opened, monkeypatch):
    def both(host: str, port: int, **_: object) -> list:
        return [
            (socket.AF_INET, 1, 6, "", (address, port))
            for address in ("192.0.2.1", "127.0.0.2", "127.0.0.3", "127.0.0.2")
        ]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", both)
        waiting = Waiting("localhost")
    assert reaches("127.0.0.2", waiting.port)
    assert not reaches("127.0.0.1", waiting.port)
    arrive(waiting, opened, "127.0.0.3")


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
        key = json.loads(directory.with_suffix(".place").read_text())["key"]
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
