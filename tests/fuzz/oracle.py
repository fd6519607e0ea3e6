"""What a reader may do: read, or raise an error of ours; nothing else, nor for long.

A hook sees whatever Python opens, imports, compiles, connects to and starts; ``canary``
sees who opens a file beside the case, in whatever language.
"""

import codecs
import contextlib
import faulthandler
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .canary import Canary

SECONDS = 5.0  # of the processors
MOST = 256 << 20  # bytes that the process grows by
_HANG = 240.0  # seconds of the clock, for a machine that is busy

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HERE = Path(__file__).resolve()
_READABLE = tuple(
    f"{os.path.realpath(root)}{os.sep}"
    for root in (
        *(sys.prefix, sys.base_prefix, *sys.path[1:], _HERE.parents[1], "/proc/self"),
    )
    if root
)
_DEVICES = {"/dev/null", "/dev/urandom", "/etc/localtime"}

# Nothing that is read is a reason for these.
_NEVER = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
    *("pty.spawn", "subprocess.Popen", "os.kill", "os.startfile", "os.putenv"),
    *("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"),
    *("pickle.find_class", "ftplib.connect", "urllib.Request", "webbrowser.open"),
}
# Of a reader that trains nothing.
_NEVER_READING = {
    *("import", "exec", "compile", "marshal.loads", "marshal.load", "code.__new__"),
    *("ctypes.dlopen", "ctypes.dlsym", "os.chmod", "os.chown", "os.setxattr"),
}
# What changes a path: only in the directory of the case.
_CHANGES = {
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"),
    *("shutil.move", "shutil.copyfile", "os.link", "os.symlink"),
}


# `json`, `pickletools`, `zipfile` and `str.decode` look these up at their first use.
for _encoding in ("utf-8-sig", "utf-16", "utf-32", "ascii", "latin-1", "idna", "cp437"):
    codecs.lookup(_encoding)
for _encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
    codecs.lookup(_encoding)
codecs.lookup("raw-unicode-escape")


class Finding(Exception):
    """What a reader did, and may not; the text says what."""


@dataclass
class Watch:
    """Watches one process, case by case.

    Attributes:
        room: The directory of the case; everything inside is its own.
        reading: Whether nothing is trained, which imports and compiles.
        seen: What was done that may not be.
    """

    room: str
    reading: bool = True
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        what = self._wrong(event, arguments)
        if what:
            self.seen.append(what)
            raise PermissionError(what)

    def _wrong(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            return self._wrong_to_open(*arguments)
        if event in _CHANGES:
            paths = [each for each in arguments[:2] if isinstance(each, str | bytes)]
            if event == "os.symlink":
                paths = paths[1:]
            bad = [path for path in paths if not self._is_inside(_real(path))]
            return f"{event} {bad}" if bad else ""
        if event == "compile" and _is_parsed(arguments[1]):
            return ""
        if event in _NEVER or (self.reading and event in _NEVER_READING):
            return f"{event} {arguments!r:.200}"
        return ""

    def _wrong_to_open(self, path: Any, mode: str | None, flags: int) -> str:
        if not isinstance(path, str | bytes):  # a descriptor
            return ""
        real = _real(path)
        if self._is_inside(real) or real in _DEVICES:
            return ""
        # To sync the name of the directory, which lies in its parent.
        if real == os.path.dirname(self.room) and not flags & _WRITES:
            return ""
        if not self.reading and f"{real}{os.sep}".startswith(_compiled()):
            return ""
        if not flags & _WRITES and f"{real}{os.sep}".startswith(_READABLE):
            return ""
        return f"open {real} {mode} {flags:#o}"

    def _is_inside(self, real: str) -> bool:
        return real == self.room or real.startswith(f"{self.room}{os.sep}")


def _is_parsed(where: Any) -> bool:
    """Whether it is only parsed: by ``ast.literal_eval``, or to show a traceback."""
    name = os.fsdecode(where) if isinstance(where, str | bytes) else ""
    return name == "<unknown>" or _real(name).startswith(_READABLE)


def _compiled() -> str:
    """Where JAX keeps what it compiled, if it does."""
    kept = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return f"{_real(kept)}{os.sep}" if kept else "\0"


def _real(path: str | bytes) -> str:
    return os.path.realpath(os.fsdecode(path))


_watch: Watch | None = None
_looking = threading.local()  # what looking itself does is not looked at


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    watch = _watch
    if watch is None or getattr(_looking, "now", False):
        return
    _looking.now = True
    try:
        watch(event, arguments)
    finally:
        _looking.now = False


_installed = False


@contextlib.contextmanager
def watched(room: Path, canary: Canary, *, reading: bool = True) -> Iterator[None]:
    """Look at what happens inside, in the working directory ``room``.

    Raises:
        Finding: Something that may not.
    """
    global _watch, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    os.chdir(room)
    watch = Watch(os.path.realpath(room), reading)
    _forget_size()
    began, before = time.process_time(), _size()
    faulthandler.dump_traceback_later(_HANG, exit=True)
    _watch = watch
    try:
        yield
    finally:
        _watch = None
        faulthandler.cancel_dump_traceback_later()
        os.chdir("/")
        seconds, grown = time.process_time() - began, _size() - before
        if watch.seen:
            raise Finding(watch.seen[0])
        if canary.touched():
            raise Finding("the file beside it was opened, or is another one")
        if reading and seconds > SECONDS:
            raise Finding(f"took {seconds:.1f} s")
        if reading and grown > MOST:
            raise Finding(f"took {grown >> 20:,} MiB")


def _forget_size() -> None:
    """Or what grows below what this process once had would not be seen."""
    with contextlib.suppress(OSError):  # only Linux can
        Path("/proc/self/clear_refs").write_text("5")


def _size() -> int:
    """The most memory that this process has had since."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
