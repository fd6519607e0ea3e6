"""Opens the store that a ``checkpoint_dir`` names: a local directory or remote."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import message
from resilient.storage import refusals, scratch
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.layout import local_directory
from resilient.storage.remote.address import Address
from resilient.storage.remote.options import Upload, checked_upload
from resilient.storage.remote.tiered import TieredStore
from resilient.storage.store import Store

CheckpointDir = str | os.PathLike[str]


def store_of(
    checkpoint_dir: CheckpointDir,
    local_dir: CheckpointDir | None = None,
    upload: Upload | None = None,
) -> Store:
    """The store of a run.

    Args:
        checkpoint_dir: A local path, or an address such as ``s3://bucket/run``.
        local_dir: For an address: the local copy.
        upload: For an address: how to upload.

    Raises:
        TypeError: One has the wrong type.
        ValueError: The address is invalid, or an option needs an address.
    """
    if os.environ.get(scratch.VARIABLE):
        elsewhere = scratch.instead_of(checkpoint_dir)
        if elsewhere is not checkpoint_dir:
            scratch.say()
            return Store(elsewhere)
    address = Address.of(checkpoint_dir)
    if address is not None:
        return TieredStore(address, local_dir, checked_upload(upload))
    if local_dir is not None or upload is not None:
        checked_upload(upload)
        raise ValueError(
            message(
                "`local_dir` and `upload` are for a run in an object store.",
                received=f"checkpoint_dir={os.fspath(checkpoint_dir)!r}",
                hint='Pass an address such as "s3://bucket/run" as checkpoint_dir, or '
                "leave them out.",
            )
        )
    return Store(checkpoint_dir)


def local_path(
    checkpoint_dir: CheckpointDir, local_dir: CheckpointDir | None = None
) -> Path:
    """The local directory of a run: ``checkpoint_dir`` itself, or its local copy.

    Raises:
        TypeError, ValueError, NotSupportedError: It is not usable.
    """
    checkpoint_dir = scratch.instead_of(checkpoint_dir)
    address = Address.of(checkpoint_dir)
    if address is None:
        return local_directory(checkpoint_dir)
    return address.local_directory(local_dir)


def place(store: Store, checkpoint: Checkpoint) -> str:
    """Where a checkpoint of a run is, in words."""
    if isinstance(store, TieredStore):
        return f"{store} ({checkpoint.path})"
    return str(checkpoint.path)


def wait_for_uploads(store: Store) -> None:
    """Return when everything is uploaded.

    Raises:
        CheckpointWriteError: The object store does not accept it.
    """
    while not store.uploaded(1.0):
        pass
    if left := store.not_uploaded():
        raise refusals.not_uploaded(left)


@contextlib.contextmanager
def open_readonly(checkpoint_dir: CheckpointDir) -> Iterator[Store]:
    """The store of a run, for inspection only.

    Files in an object store are fetched into a temporary directory as needed.
    """
    checkpoint_dir = scratch.read_instead_of(checkpoint_dir)
    address = Address.of(checkpoint_dir)
    if address is None:
        yield Store(checkpoint_dir)
        return
    with tempfile.TemporaryDirectory(prefix="keras-resilient-") as directory:
        store = TieredStore(address, directory, Upload())
        store.refresh()
        yield store
