"""What a backend compiled for a run, beside its checkpoints, for the next start.

A checkpoint is data, and nobody who can change it can run code. What was compiled is a
program: a file of it is loaded only if it is the very file that was written here. The
directory must belong to this user, and nobody else may write to it; each file must
have the inode, the time of its last change and the bytes that were noted when it was
written. No archive, copy or download can choose the first two. Others are deleted
before the backend can read them, and so are those that a kill cut short. Where
checkpoints are signed, nothing is kept.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from resilient.serialization.schema import from_json, parse
from resilient.storage import files
from resilient.storage.layout import COMPILED
from resilient.storage.manifest import has_key, record

_SEALED = "sealed.json"
_HOW = os.O_RDONLY | files.flags("O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW")

_Seal = tuple[int, int, str]  # inode, time of the last change, checksum


class CompiledPrograms:
    """The directory of a run's compiled programs.

    Args:
        run: The directory of the run, which exists.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / COMPILED
        self._sealed: dict[str, _Seal] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[str | None]:
        """Where a backend may keep what it compiles; None: nowhere."""
        with contextlib.ExitStack() as inside:
            path = None
            try:
                if not (has_key() or files.WINDOWS):
                    self._open(inside)
                    path = os.fspath(self._path)
            except OSError as error:
                what = f"What is compiled is not kept for the next start: {error}"
                files.say_once(what, of=self._path)
            yield path

    def seal(self) -> None:
        """Note what is there, so that the next start loads it. Fails without a word."""
        with contextlib.suppress(OSError):
            if names := self._names() - self._sealed.keys():
                self._sealed |= {name: self._seal_of(name) for name in names}
                self._write()

    def _open(self, inside: contextlib.ExitStack) -> None:
        """Open the directory while ``inside`` is, without what cannot be trusted."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        descriptor = os.open(self._path, _HOW)
        inside.callback(os.close, descriptor)
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            why = "others may write to it, or own it"
            raise PermissionError(errno.EPERM, why, os.fspath(self._path))
        # It stays this directory, whatever takes its name meanwhile.
        held = Path(f"/proc/self/fd/{descriptor}")
        self._path = held if held.exists() else self._path
        if (names := os.listdir(self._path)) and _SEALED not in names:
            why = "it has files of somebody else"
            raise FileExistsError(errno.EEXIST, why, os.fspath(self._path))
        try:
            raw = files.read_file(self._path, _SEALED, files.JSON_BYTES)
            sealed = from_json(dict[str, _Seal], parse(raw))
        except (FileNotFoundError, ValueError):
            sealed = {}
        for name in self._names():
            with contextlib.suppress(OSError):  # a link, say
                if self._seal_of(name) == sealed.get(name):
                    self._sealed[name] = sealed[name]
                    continue
            os.unlink(self._path / name)
        self._write()

    def _names(self) -> set[str]:
        return set(os.listdir(self._path)) - {_SEALED}

    def _seal_of(self, name: str) -> _Seal:
        with open(files.open_file(self._path, name), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            checksum = record(file, found.st_size).xxh3_128
        return found.st_ino, found.st_ctime_ns, checksum

    def _write(self) -> None:
        files.replace_file(self._path / _SEALED, msgspec.json.encode(self._sealed))
