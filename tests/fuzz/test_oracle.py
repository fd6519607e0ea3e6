"""The oracle sees what a reader may not do, and lets it do what it may."""

import ast
import contextlib
import ctypes
import os
import pickle
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from resilient.errors import CorruptCheckpointError

from .oracle import Finding
from .target import Bench, Target

pytestmark = pytest.mark.once


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def run(bench: Bench, act) -> str:
    target = Target("act", {}, lambda _: {}, lambda _: act())
    return bench.run(target, {})


def raises(error: BaseException) -> None:
    raise error


def in_a_thread() -> None:
    thread = threading.Thread(target=swallows)
    thread.start()
    thread.join()


def swallows() -> None:
    with contextlib.suppress(Exception):
        os.system("true")


def in_c() -> None:
    libc.open(b"../canary", os.O_RDONLY)


libc = ctypes.CDLL(None)
libc.open  # noqa: B018  (looked up before anything is watched)
NOT = {
    "raise another error": lambda: raises(KeyError("x")),
    "start a process": lambda: subprocess.run(["true"]),
    "call a shell": lambda: os.system("true"),
    "call a shell and say nothing": swallows,
    "do so in a thread": in_a_thread,
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "import": lambda: __import__("this"),
    "evaluate": lambda: eval("1 + 1"),
    "unpickle": lambda: pickle.loads(pickle.dumps(os.path.join)),
    "open what is beside it": lambda: Path("../canary").read_bytes(),
    "open that in C": in_c,
    "write elsewhere": lambda: Path("../other").write_text("x"),
    "write what it may read": lambda: os.open(__file__, os.O_RDWR),
    "read elsewhere": lambda: Path("/etc/passwd").read_text(),
    "follow a link": lambda: (
        os.symlink("/etc/passwd", "link"),
        Path("link").read_text(),
    ),
    "delete elsewhere": lambda: os.remove("../other"),
    "take memory": lambda: bytearray(b"x" * (300 << 20)),
}


@pytest.mark.parametrize("act", NOT.values(), ids=NOT.keys())
def test_what_it_may_not(bench: Bench, act) -> None:
    if act is in_c and sys.platform != "linux":
        pytest.skip("only Linux tells")
    with pytest.raises(Finding):
        run(bench, act)
    assert run(bench, lambda: None) == "read"


def own_files() -> None:
    Path("a").mkdir()
    Path("a/b").write_text("x")
    assert Path("a/b").read_text() == "x"
    os.symlink(os.path.abspath("a"), "link")
    assert Path("link/b").read_text() == "x"
    os.remove("link")


MAY = {
    "read": own_files,
    "parse": lambda: ast.literal_eval("[1]"),
    "look at its sources": lambda: Path(ast.__file__).read_text(),
    "draw": lambda: os.urandom(3),
    "refuse": lambda: raises(CorruptCheckpointError("no")),
}


@pytest.mark.parametrize("act", MAY.values(), ids=MAY.keys())
def test_what_it_may(bench: Bench, act) -> None:
    assert run(bench, act) in ("read", "CorruptCheckpointError")


def test_an_entry_is_what_was_changed() -> None:
    target = Target("x", {"a": b"0123456789", "b": b""}, lambda _: {}, lambda _: None)
    generator = random.Random(3)
    for new in (b"", b"01x6789", b"0123456789", b"00", generator.randbytes(50)):
        entry = target.entry({"a": new})
        assert target.changed(entry) == {"a": new}
        assert target.entry({"a": new}) == entry
