"""Transfers one checkpoint to or from the store, several files at a time."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from resilient.storage import commit, files, layout
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.remote.claims import Uploaded
from resilient.storage.remote.objects import Objects

T = TypeVar("T")


class GoneError(Exception):
    """The local checkpoint is gone or has been replaced."""


class Transfer:
    """Uploads one checkpoint; a retry does not resend what was sent.

    Args:
        near: The checkpoint.
        uploaded: Its name in the store.
        objects: The store.
    """

    def __init__(self, near: Checkpoint, uploaded: Uploaded, objects: Objects) -> None:
        self.near, self.uploaded = near, uploaded
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

        def send(name: str) -> None:
            if not wanted():
                raise GoneError(f"{self.near.path} is not wanted any more")
            try:
                self._objects.send(self.near.path / name, f"{self.uploaded}/{name}")
            except FileNotFoundError as error:
                raise GoneError(error) from None
            self._sent.add(name)

        left = [name for name in self.near.files if name not in self._sent]
        at_once(send, left, self._objects.upload.connections)

    def commit(self) -> None:
        """Upload the manifest: from now on the checkpoint is in the store.

        Raises:
            GoneError: Another checkpoint has taken its place meanwhile.
            StoreError: The store fails.
        """
        try:
            raw = files.read_file(self.near.path, layout.MANIFEST, files.JSON_BYTES)
        except FileNotFoundError as error:
            raise GoneError(error) from None
        if raw != self.near.to_bytes():
            raise GoneError(f"{self.near.path} was replaced")
        self._objects.put(f"{self.uploaded}/{layout.MANIFEST}", raw)


def fetch(wanted: Checkpoint, prefix: str, objects: Objects) -> None:
    """Make a checkpoint of the store one of a local directory, all of it or nothing.

    Args:
        wanted: What it will be.
        prefix: Its name in the store.
        objects: The store.

    Raises:
        DamageError: It is not what its manifest says.
        StoreError: The store fails.
        CheckpointWriteError: The local file system does.
    """
    path = wanted.path.with_name(layout.staging_name(wanted.step))

    def receive(name: str) -> None:
        try:
            nbytes = wanted.files[name].size
            objects.receive(f"{prefix}/{name}", path / name, nbytes)
        except FileNotFoundError:
            raise DamageError([f"{name} is missing"]) from None

    with commit.staging(path, wanted.progress) as staging:
        _make_room(path, wanted.files)
        at_once(receive, wanted.files, objects.upload.connections)
        written = staging.seal(wanted.files)
        problems = [
            f"{name} does not match its checksum"
            for name, record in wanted.files.items()
            if not written[name].matches(record)
        ]
        if problems:
            raise DamageError(problems)
        commit.publish(staging, wanted)


def _make_room(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise DamageError([f"{name} cannot lie beside the others"]) from None


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
