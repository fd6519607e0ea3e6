"""What a disk may hold after a power cut: what was synced, and any part of the rest.

The model is weaker than any file system in use, as in ALICE and CrashMonkey:

* Bytes of a file that was not synced since are there, or the former ones are, or zeros,
  each block for itself; or the file is shorter.
* Names that were made, changed or deleted in a directory that was not synced since are
  as before or as after, each for itself, in any combination. Syncing a file does not
  make its name durable, nor syncing a directory its name in its parent.
* A rename is there or not. One to another directory may be there in the new place and
  not yet gone from the old one.
"""

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 4096

# Of a directory: what became of some of its names, None for one that is gone.
Names = dict[str, int | None]
# Directories and names that change together; of a rename, the new name first.
Change = list[tuple[int, Names]]
Tree = dict[str, "bytes | Tree"]


@dataclass(frozen=True)
class Event:
    """One thing that was done.

    Attributes:
        kind: "names", "bytes" of a file, "synced", or a word of whoever records.
        what: Its ``Change``, its number with the new bytes, its number, or anything.
    """

    kind: str
    what: Any


@dataclass
class Disk:
    """A disk between events.

    Attributes:
        root: The number of the directory that everything is in.
    """

    root: int
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _bytes: dict[int, list[bytes]] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        if event.kind == "names":
            self._changes.append(list(event.what))
        elif event.kind == "bytes":
            inode, data = event.what
            self._bytes.setdefault(inode, [b""]).append(data)
        elif event.kind == "synced":
            self._sync(event.what)

    def _sync(self, inode: int) -> None:
        if inode in self._bytes:
            del self._bytes[inode][:-1]
            return
        for change in self._changes:
            last = max((n for n, c in enumerate(change) if c[0] == inode), default=-1)
            _update(self._names, change[: last + 1])
            del change[: last + 1]
        self._changes = [change for change in self._changes if change]

    def after_power_cut(self, dice: random.Random) -> Tree:
        """One of the states that a power cut now may leave."""
        names = {inode: dict(known) for inode, known in self._names.items()}
        kept, whole = (dice.choice((0.0, 0.2, 0.5, 0.8, 1.0)) for _ in range(2))
        for change in self._changes:
            if dice.random() < kept:
                _update(names, change[: dice.choice((len(change), 1))])
        files = {
            inode: versions[-1]
            if len(versions) == 1 or dice.random() < whole
            else _torn(dice, dice.choice(versions[:-1]), dice.choice(versions[1:]))
            for inode, versions in self._bytes.items()
        }
        return self._tree(names, files, self.root)

    def _tree(
        self, names: dict[int, dict[str, int]], files: dict[int, bytes], inode: int
    ) -> Tree:
        return {
            name: files[each] if each in files else self._tree(names, files, each)
            for name, each in names.get(inode, {}).items()
        }


def _update(names: dict[int, dict[str, int]], change: Change) -> None:
    for directory, changed in change:
        known = names.setdefault(directory, {})
        for name, inode in changed.items():
            known.pop(name, None)
            if inode is not None:
                known[name] = inode


def _torn(dice: random.Random, old: bytes, new: bytes) -> bytes:
    """Something between two versions of a file."""
    size = dice.choice((0, len(old), len(new), dice.randint(0, len(new))))
    pieces = []
    for start in range(0, size, BLOCK):
        source = dice.choice((old, new, b""))
        pieces.append(source[start : start + BLOCK].ljust(BLOCK, b"\0"))
    return b"".join(pieces)[:size]


def write(tree: Tree, directory: Path) -> None:
    """Make a directory of it."""
    directory.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (directory / name).write_bytes(content)
        else:
            write(content, directory / name)


def digest(tree: Tree) -> bytes:
    """The same for equal trees."""
    sums = hashlib.blake2b(digest_size=16)
    for name, content in sorted(tree.items()):
        is_file = isinstance(content, bytes)
        inner = hashlib.blake2b(content).digest() if is_file else digest(content)
        sums.update(f"{name}/{is_file}/".encode() + inner)
    return sums.digest()
