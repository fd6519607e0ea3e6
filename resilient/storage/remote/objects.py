"""Sends requests to an object store, retried while it is busy or unavailable.

An error is a ``StoreError``, whose text contains no credentials, and which is not
chained to the driver's own error, which may show them.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resilient.errors import (
    ResilientError,
    printable,
)
from resilient.serialization.redaction import LEFT_OUT, names_secret, redacted
from resilient.storage.files import replace_file
from resilient.storage.remote import driver
from resilient.storage.remote.address import Address
from resilient.storage.remote.options import Upload

if TYPE_CHECKING:
    import fsspec

T = TypeVar("T")

_ANSWER = 45.0  # seconds
_SLOWEST = 100_000  # bytes per second
_LONGEST = 500  # characters of a driver's message

_NOT_TRANSIENT = (
    *(FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError),
    *(NotADirectoryError, NotImplementedError, TypeError, AttributeError),
)


class StoreError(ResilientError):
    """A request to the object store failed.

    Attributes:
        transient: Whether the same request may succeed later.
    """

    def __init__(self, text: str, *, transient: bool) -> None:
        super().__init__(text)
        self.transient = transient

    def __repr__(self) -> str:
        return f"{driver.OURS}: {self}"


class Objects:
    """The objects below one address, by their names relative to it.

    Args:
        address: Of the run.
        upload: Limits and settings.

    Attributes:
        abandoned: Set when the run has ended: no more requests are made.
    """

    def __init__(self, address: Address, upload: Upload) -> None:
        self.address, self.upload = address, upload
        self.abandoned = threading.Event()
        self._secrets = _secrets(upload.storage_options) | _secrets(os.environ)

    def names(self, below: str = "") -> dict[str, int]:
        """Every object, or those below a name, with its size in bytes.

        Raises:
            StoreError: They cannot be listed.
        """
        return self._tried(lambda: self._list(below))

    def get(self, name: str, limit: int) -> bytes:
        """All of an object.

        Raises:
            FileNotFoundError: There is none.
            StoreError: It cannot be read, or has more bytes than ``limit``.
        """

        def read() -> bytes:
            path = self._path(name)
            limits = {"start": 0, "end": limit + 1, **self._within(limit)}
            content: bytes = self._fs.cat_file(path, **limits)
            if len(content) > limit:
                raise TypeError(f"{name} has more than {limit:,} bytes")
            return content

        return self._tried(read, missing=FileNotFoundError(name))

    def put(self, name: str, content: bytes) -> None:
        """Create or replace an object atomically.

        Raises:
            StoreError: It cannot be written.
        """
        within = self._within(len(content))
        if self.address.protocol == "file":  # which stores know by themselves
            file = Path(self._path(name))
            file.parent.mkdir(parents=True, exist_ok=True)
            self._tried(lambda: replace_file(file, content))
        else:
            path = self._path(name)
            self._tried(lambda: self._fs.pipe_file(path, content, **within))

    def send(self, path: Path, name: str) -> None:
        """Make an object of a file, by the driver's own means.

        Raises:
            FileNotFoundError: There is no such file.
            StoreError: It cannot be written.
        """
        target = self._path(name)
        within = self._within(path.stat().st_size)
        self._tried(lambda: self._fs.put_file(os.fspath(path), target, **within))

    def receive(self, name: str, path: Path, nbytes: int) -> None:
        """Make a file of an object, which has so many bytes.

        Raises:
            FileNotFoundError: There is no such object.
            OSError: The local disk is full.
            StoreError: It cannot be read.
        """
        source, target = self._path(name), os.fspath(path)
        full = list[OSError]()

        def get() -> None:
            try:
                self._fs.get_file(source, target, **self._within(nbytes))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                full.append(OSError(error.errno, os.strerror(error.errno), target))

        self._tried(get, missing=FileNotFoundError(name))
        for error in full:
            raise error

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects in this order; some may be gone already.

        Raises:
            StoreError: One cannot be deleted.
        """
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                rm = partial(self._fs.rm_file, self._path(name), **self._within())
                self._tried(rm, missing=FileNotFoundError(name))

    def explain(self, error: BaseException) -> str:
        """The text of a driver's error, without credentials."""
        late = "no answer in time" if isinstance(error, TimeoutError) else ""
        text = " ".join(f"{type(error).__name__}: {str(error) or late}".split())
        text = text.rstrip(":.")
        for secret in self._secrets:
            text = text.replace(secret, LEFT_OUT)
        return printable(redacted(text)[:_LONGEST])

    @cached_property
    def _opened(self) -> "tuple[fsspec.AbstractFileSystem, str]":
        try:
            return driver.opened(self.address, self.upload.storage_options)
        except ResilientError:
            raise
        except Exception as error:  # without credentials, whatever a driver raises
            raise self._failure(error) from None

    @property
    def _fs(self) -> "fsspec.AbstractFileSystem":
        return self._opened[0]

    def _within(self, nbytes: int = 0) -> dict[str, float]:
        """Arguments of a request that say how long it may take, in seconds.

        Drivers may limit some answers, but wait for others forever.
        """
        return {"timeout": _ANSWER + nbytes / _SLOWEST} if self._fs.async_impl else {}

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def _list(self, below: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        root = self._path(f"{below}/" if below else "")
        try:
            found = self._fs.find(root, detail=True, **self._within())
        except FileNotFoundError:  # no directory yet, where a store has them
            return {}
        return {
            path.removeprefix(root): int(info.get("size") or 0)
            for path, info in found.items()
            if path.startswith(root)
        }

    def _tried(
        self, request: Callable[[], T], missing: FileNotFoundError | None = None
    ) -> T:
        self._opened  # noqa: B018  # or what is wrong for good
        for attempt in _attempts(self.upload.patience, self.abandoned):
            with attempt:
                if self.abandoned.is_set():
                    raise StoreError("the run has ended", transient=False)
                try:
                    return request()
                except Exception as error:  # drivers have families of their own
                    gone = isinstance(error, FileNotFoundError)
                    failure = missing if gone and missing else self._failure(error)
                raise failure  # with no way back to the driver's own error
        raise AssertionError("stamina returns a result or raises")

    def _failure(self, error: BaseException) -> StoreError:
        name = type(error).__name__
        lasting = isinstance(error, _NOT_TRANSIENT) or "Credential" in name
        return StoreError(self.explain(error), transient=not lasting)


def _attempts(patience: float, abandoned: threading.Event) -> Any:
    import stamina

    def again(error: Exception) -> bool:
        transient = isinstance(error, StoreError) and error.transient
        return transient and not abandoned.is_set()

    return stamina.retry_context(
        on=again, attempts=None, timeout=patience, wait_initial=0.2, wait_max=10.0
    )


def _secrets(values: Mapping[str, Any]) -> set[str]:
    """Values that must not be shown: all long texts in options, secrets of others."""
    found = set[str]()
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _secrets(value)
        elif isinstance(value, str) and len(value) >= 8 and names_secret(name):
            found.add(value)
    return found
