"""Records what is done to a directory, as events that ``power_cut`` understands.

All that makes anything durable is called by Python code of ours: syncs and renames.
Around these calls the directory is looked at, so that what the backends' own libraries
write there is seen as well: as bytes and names that nobody synced yet.
"""

import itertools
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.power_cut import Change, Event

SYNCS = ("fsync", "fdatasync")
CALLS = ("mkdir", "link", "rename", "replace", "unlink", "rmdir", "truncate")


class Killed(BaseException):
    """In place of SIGKILL: from then on the process does nothing to the disk."""


class Recorder:
    """While entered, records what this process does to a directory.

    Args:
        root: The directory; it is taken to be durable as it is.
        forgets: Pattern of names of which this disk only says that they are synced.

    Attributes:
        events: What was done.
        calls: The calls to the disk, by name.
        kill_in: After how many more of them this process is killed, if at all.
    """

    def __init__(self, root: Path, forgets: str = "") -> None:
        self.root, self._forgets = root, re.compile(forgets)
        self.events: list[Event] = []
        self.calls: list[str] = []
        self.kill_in: int | None = None
        self._numbers: dict[int, int] = {}  # of inodes, which the system uses again
        self._counter = itertools.count()
        self._names: dict[int, dict[str, int]] = {}
        self._bytes: dict[int, bytes] = {}
        self._lock = threading.RLock()
        self._real: dict[str, Callable[..., Any]] = {}
        self.look()
        self.events += [Event("synced", inode) for inode in self._bytes | self._names]

    def __enter__(self) -> "Recorder":
        for name in (*SYNCS, *CALLS):
            self._real[name] = getattr(os, name)
            setattr(os, name, self._recorded(name, self._real[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        self.look()

    def mark(self, kind: str, what: Any) -> None:
        """Add an event of another kind, after all that was done before."""
        with self._lock:
            self.look()
            self.events.append(Event(kind, what))

    def _recorded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._count(name)
                self.look()
                result = real(*args, **kwargs)
                if name in SYNCS:
                    self._synced(os.fstat(args[0]).st_ino)
                else:
                    self.look()
                return result

        return call

    def _count(self, name: str) -> None:
        if self.kill_in is not None:
            if self.kill_in <= 0:
                raise Killed
            self.kill_in -= 1
        self.calls.append(name)

    def _synced(self, inode: int) -> None:
        number = self._numbers.get(inode)
        known = (names.items() for names in self._names.values())
        called = [name for names in known for name, each in names if each == number]
        if number is not None and not any(map(self._forgets.fullmatch, called)):
            self.events.append(Event("synced", number))

    def look(self) -> None:
        """Record what changed since the last look."""
        with self._lock:
            names, files = _scan(self.root)
            old, count = self._numbers, self._counter
            self._numbers = new = {
                inode: old[inode] if inode in old else next(count)
                for inode in (*names, *files)
            }
            numbered = {
                new[inode]: {name: new[each] for name, each in known.items()}
                for inode, known in names.items()
            }
            data = {new[inode]: content for inode, content in files.items()}
            for number, content in data.items():
                if self._bytes.get(number) != content:
                    self.events.append(Event("bytes", (number, content)))
            for change in _changes(self._names, numbered):
                self.events.append(Event("names", change))
            self._names, self._bytes = numbered, data


def _scan(root: Path) -> tuple[dict[int, dict[str, int]], dict[int, bytes]]:
    """Names by directory, and bytes by file; both by inode."""
    names: dict[int, dict[str, int]] = {}
    files: dict[int, bytes] = {}
    todo = [(os.fspath(root), root.stat().st_ino)]
    while todo:
        path, inode = todo.pop()
        known = names[inode] = {}
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                todo.append((entry.path, entry.inode()))
            else:
                try:
                    files[entry.inode()] = Path(entry.path).read_bytes()
                except FileNotFoundError:  # another thread is at work
                    continue
            known[entry.name] = entry.inode()
    return names, files


def _entries(path: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _changes(
    before: dict[int, dict[str, int]], after: dict[int, dict[str, int]]
) -> list[Change]:
    """What became of names; of those that moved, both at once."""
    gone = {
        inode: (directory, name)
        for directory, names in before.items()
        for name, inode in names.items()
        if directory in after and after[directory].get(name) != inode
    }
    changes: list[Change] = []
    for directory, names in after.items():
        known = before.get(directory, {})
        for name, inode in names.items():
            if known.get(name) == inode:
                continue
            place, former = gone.pop(inode, (directory, name))
            if place == directory:
                changes.append([(directory, {former: None} | {name: inode})])
            else:
                changes.append([(directory, {name: inode}), (place, {former: None})])
    kept = {(d, n) for d, names in after.items() for n in names}
    lost = [place for place in gone.values() if place not in kept]
    return changes + [[(directory, {name: None})] for directory, name in lost]
