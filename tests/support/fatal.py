"""How a process of a test ends itself, at a place of a save; no Keras is needed."""

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resilient.distributed.group import Together

CALLS = ("fsync", "link", "rename", "replace", "unlink", "rmdir", "mkdir")


def die(which: signal.Signals = signal.SIGKILL) -> None:
    os.kill(os.getpid(), which)


def install(text: str | None) -> list[str] | None:
    """Let this process be killed at a place of a save, and log its file system calls.

    * ``broadcast committed@2`` before it sends, or gets, that topic for the 2nd time
    * ``gather part@2``         before it contributes to that topic for the 2nd time
    * ``publish@2``             before it makes a checkpoint of what is staged, and
      ``published@2`` right after it, for the 2nd time
    * ``call@17``               before its 17th call that changes the file system
    * ``no space@17``           not killed: the 17th flush, and all after it, find no
      space

    Returns:
        The log, which grows; None, with nothing done, where it is another place.
    """
    event, _, at = (text or "").partition("@")
    method, _, topic = event.partition(" ")
    if method in ("broadcast", "gather"):
        die_before(method, topic, int(at))
    elif event in ("publish", "published"):
        die_at_rename(int(at), after=event == "published")
    elif event == "no space":
        fill_disk(int(at))
    elif event not in ("", "call"):
        return None
    return count_calls(int(at) if event == "call" else None)


def die_before(method: str, topic: str, number: int) -> None:
    """Die before this process says or hears something for the n-th time."""
    real, left = getattr(Together, method), [number]

    def call(self: Together, about: str, value: Any = None) -> Any:
        left[0] -= about == topic
        if not left[0]:
            die()
        return real(self, about, value)

    setattr(Together, method, call)


def die_at_rename(number: int, *, after: bool) -> None:
    """Die where a staging directory gets the name of a checkpoint."""
    real, left = os.rename, [number]

    def rename(source: Any, target: Any) -> None:
        left[0] -= bool(re.fullmatch(r"step-\d+", Path(target).name))
        if not left[0] and not after:
            die()
        real(source, target)
        if not left[0]:
            die()

    os.rename = rename


def die_in_save(number: int, seconds: float) -> None:
    """Die so long after this process begins to stage a checkpoint for the n-th time."""
    real, left = os.mkdir, [number]

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        left[0] -= ".tmp-" in Path(path).name
        if not left[0]:
            timer = threading.Timer(seconds, die)
            timer.daemon = True
            timer.start()
        real(path, *args, **kwargs)

    os.mkdir = mkdir


def fill_disk(number: int) -> None:
    """From the n-th flush on nothing gets onto the disk."""
    real, left = os.fsync, [number]

    def fsync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    os.fsync = fsync


def slow_down(seconds: float) -> None:
    """Make each flush to the disk take so much longer."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        time.sleep(seconds)
        real(descriptor)

    os.fsync = fsync


def count_calls(kill_at: int | None) -> list[str]:
    """From now on, log calls that change the file system; die before one of them.

    Returns:
        The log, which grows: names of the calls with the file's name.
    """
    log: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            log.append(f"{name} {args[0] if args else ''}")
            if len(log) == kill_at:
                die()
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    return log
