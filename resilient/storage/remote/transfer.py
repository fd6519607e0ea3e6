"""Transfers one checkpoint to or from the store, in concurrent parts."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from resilient.storage import commit, files, layout
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.manifest import Manifest
from resilient.storage.remote.objects import Objects
from resilient.storage.remote.options import PART

T = TypeVar("T")


class GoneError(Exception):
    """The local checkpoint is gone or has been replaced."""


class _Part(NamedTuple):
    """Some bytes of a file, and the object that has them."""

    file: str
    name: str
    begin: int
    size: int


class Transfer:
    """Uploads one checkpoint; a retry does not resend what was sent.

    Args:
        near: The checkpoint.
        prefix: Its name in the store.
        objects: The store.
    """

    def __init__(self, near: Checkpoint, prefix: str, objects: Objects) -> None:
        self.near, self.prefix = near, prefix
        self._objects = objects
        self._sent: set[str] = set()

    def send_files(self, wanted: Callable[[], bool]) -> None:
        """Upload everything but the manifest.

        Args:
            wanted: Whether to go on.

        Raises:
            StoreError: The store fails.
            GoneError: The checkpoint is not there, or not wanted, any more.
        """

        def send(part: _Part) -> None:
            if not wanted():
                raise GoneError(f"{self.near.path} is not wanted any more")
            self._send(part)

        left = [part for part in _parts(self.near) if part.name not in self._sent]
        at_once(send, left, self._objects.upload.threads)

    def commit(self, before: Callable[[], None]) -> Manifest:
        """Upload the manifest: from now on the checkpoint is in the store.

        Args:
            before: Raises where it must not be.

        Returns:
            The manifest.

        Raises:
            GoneError: Another checkpoint has taken its place meanwhile.
            StoreError: The store fails.
        """
        before()
        try:
            raw = files.read_file(self.near.path, layout.MANIFEST, files.JSON_BYTES)
        except FileNotFoundError as error:
            raise GoneError(error) from None
        if raw != self.near.to_bytes():
            raise GoneError(f"{self.near.path} was replaced")
        self._objects.put(f"{self.prefix}/{layout.MANIFEST}", raw)
        return Manifest.from_bytes(raw)

    def _send(self, part: _Part) -> None:
        try:
            descriptor = files.open_file(self.near.path, part.file)
        except FileNotFoundError as error:
            raise GoneError(error) from None
        try:
            content = os.pread(descriptor, part.size, part.begin)
        finally:
            os.close(descriptor)
        self._objects.put(f"{self.prefix}/{part.name}", content)
        self._sent.add(part.name)


def fetch(manifest: Manifest, prefix: str, objects: Objects, directory: Path) -> None:
    """Make a checkpoint of the store one of a local directory, all of it or nothing.

    Raises:
        DamageError: It is not what its manifest says.
        StoreError: The store fails.
        CheckpointWriteError: The local file system does.
    """
    progress = manifest.progress
    path = directory / layout.staging_name(progress.step)
    with commit.staging(path, progress) as staging:
        _receive(manifest, prefix, objects, staging.path)
        written = staging.seal()
        problems = [
            f"{name} does not match its checksum"
            for name, record in manifest.files.items()
            if name not in written or not written[name].matches(record)
        ]
        if problems:
            raise DamageError(problems)
        commit.publish(staging, manifest)


def _receive(manifest: Manifest, prefix: str, objects: Objects, into: Path) -> None:
    for name in manifest.files:
        path = into / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise DamageError([f"{name} cannot lie beside the others"]) from None

    def receive(part: _Part) -> None:
        if not part.size:
            return  # a range of nothing is an error in some stores
        try:
            content = objects.get(f"{prefix}/{part.name}", part.size)
        except FileNotFoundError:
            raise DamageError([f"{part.name} is missing"]) from None
        if len(content) != part.size:
            problem = f"{part.name} has {len(content):,} bytes, not {part.size:,}"
            raise DamageError([problem])
        with open(into / part.file, "r+b") as file:
            file.seek(part.begin)
            file.write(content)

    at_once(receive, _parts(manifest), objects.upload.threads)


def at_once(function: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call a function for each item, several at a time; the first error ends it."""
    lock, failed = threading.Lock(), list[BaseException]()
    left = iter(items)

    def work() -> None:
        while not failed:
            try:
                with lock:
                    item = next(left)
            except StopIteration:
                return
            try:
                function(item)
            except BaseException as error:  # raised below, in the caller's thread
                failed.append(error)

    # Not a pool, whose threads the end of a process waits for.
    workers = [
        threading.Thread(target=work, name="resilient-store", daemon=True)
        for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]


def _parts(manifest: Manifest) -> Iterator[_Part]:
    for file, record in manifest.files.items():
        count = max(1, -(-record.size // PART))
        for index in range(count):
            begin = index * PART
            name = file if count == 1 else f"{file}.part-{index:05d}-of-{count:05d}"
            yield _Part(file, name, begin, min(PART, record.size - begin))
