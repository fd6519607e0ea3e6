"""Sends requests to an object store, retried while it is busy or unavailable.

An error is a ``StoreError``, whose text contains no credentials, and which is not
chained to the driver's own error, which may show them.
"""

import contextlib
import errno
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resilient.errors import (
    BackendNotAvailableError,
    NotSupportedError,
    ResilientError,
    printable,
)
from resilient.serialization.redaction import LEFT_OUT, names_secret, redacted
from resilient.storage.files import replace_file
from resilient.storage.remote.address import Address
from resilient.storage.remote.options import Upload

if TYPE_CHECKING:
    import fsspec

T = TypeVar("T")

_OURS = "keras-resilient"  # prefix of errors of requests that we retry
_ANSWER = 45.0  # seconds
_SLOWEST = 100_000  # bytes per second
_LONGEST = 500  # characters of a driver's message

# Drivers retry by themselves for minutes, and wait a minute for each answer: reduce
# that, unless the user has set it. For "file", fsspec's own, create directories as
# needed.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 30,
            "retries": {"max_attempts": 0},
        }
    },
    "gs": {"requests_timeout": 30},
    "az": {"connection_timeout": 10, "read_timeout": 30},
    "file": {"auto_mkdir": True},
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}

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
        return f"{_OURS}: {self}"


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
        """List every object, or those below a name, with its size in bytes.

        Raises:
            StoreError: They cannot be listed.
        """
        root = self._path(f"{below}/" if below else "")

        def find() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(root, detail=True, **self._within())
            except FileNotFoundError:  # no directory yet, where a store has them
                return {}
            return {
                path.removeprefix(root): int(info.get("size") or 0)
                for path, info in found.items()
                if path.startswith(root)
            }

        return self._tried(find)

    def get(self, name: str, limit: int) -> bytes:
        """Read all of an object.

        Raises:
            FileNotFoundError: There is none.
            StoreError: It cannot be read, or has more bytes than ``limit``.
        """
        path = self._path(name)

        def read() -> bytes:
            limits = {"start": 0, "end": limit + 1, **self._within(limit)}
            content: bytes = self._fs.cat_file(path, **limits)
            if len(content) > limit:
                raise TypeError(f"{name} has more than {limit:,} bytes")
            return content

        return self._tried(read, missing=name)

    def put(self, name: str, content: bytes) -> None:
        """Create or replace an object atomically.

        Raises:
            StoreError: It cannot be written.
        """
        path, within = self._path(name), self._within(len(content))
        if self.address.protocol == "file":  # which stores know by themselves

            def replace() -> None:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                replace_file(Path(path), content)

            self._tried(replace)
        else:
            self._tried(lambda: self._fs.pipe_file(path, content, **within))

    def create(self, name: str, content: bytes) -> bool:
        """Create an object, and replace none where the store can refuse to.

        Returns:
            Whether the object has this content, and not another that was there before.

        Raises:
            StoreError: It cannot be written.
        """
        if not self._can_create:
            self.put(name, content)
            return True
        path, within = self._path(name), self._within(len(content))

        def create() -> bool:
            try:
                self._fs.pipe_file(path, content, mode="create", **within)
            except (OSError, NotImplementedError) as error:
                number = getattr(error, "errno", errno.ENOSYS)
                unclear = number in (errno.EINVAL, errno.ENOSYS)  # it has no words
                if not isinstance(error, FileExistsError) and not unclear:
                    raise
                # An earlier try, whose answer was lost, may have written it.
                limits = {"start": 0, "end": len(content) + 1, **within}
                with contextlib.suppress(FileNotFoundError):
                    return bool(self._fs.cat_file(path, **limits) == content)
                self._fs.pipe_file(path, content, **within)  # it knows no conditions
            return True

        return self._tried(create)

    def send(self, path: Path, name: str) -> None:
        """Make an object of a file, by the driver's own means.

        Raises:
            FileNotFoundError: There is no such file.
            StoreError: It cannot be written.
        """
        target, within = self._path(name), self._within(path.stat().st_size)
        self._tried(lambda: self._fs.put_file(os.fspath(path), target, **within))

    def receive(self, name: str, path: Path, nbytes: int) -> None:
        """Make a file of an object, which has so many bytes.

        Raises:
            FileNotFoundError: There is no such object.
            OSError: The local disk is full.
            StoreError: It cannot be read.
        """
        source, target = self._path(name), os.fspath(path)
        within = self._within(nbytes)
        self._tried(
            lambda: self._fs.get_file(source, target, **within),
            missing=name,
            local=target,
        )

    def delete(self, name: str) -> None:
        """Delete an object, unless it is gone already.

        Raises:
            StoreError: It cannot be deleted.
        """
        path, within = self._path(name), self._within()
        with contextlib.suppress(FileNotFoundError):
            self._tried(lambda: self._fs.rm_file(path, **within), missing=name)

    @cached_property
    def _opened(self) -> "tuple[fsspec.AbstractFileSystem, str]":
        """The driver, and the path of the address in it.

        Raises:
            BackendNotAvailableError: It is not installed.
            NotSupportedError: There is none.
            StoreError: It does not take the options.
        """
        try:
            import fsspec
            import stamina  # noqa: F401
        except ImportError as error:
            raise BackendNotAvailableError(
                "Runs in object stores need fsspec and stamina.",
                received=f"{error.name} is not installed",
                hint='Install them: pip install "keras-resilient[remote]"',
            ) from error
        logging.getLogger("stamina").addFilter(_is_not_ours)
        protocol = self.address.protocol
        options = {
            **_DEFAULTS.get(_ALIASES.get(protocol, protocol), {}),
            **self.upload.storage_options,
            "use_listings_cache": False,
            "skip_instance_cache": True,
        }
        try:
            fs, root = fsspec.core.url_to_fs(str(self.address), **options)
        except ImportError as error:
            raise BackendNotAvailableError(
                f"The driver of {protocol}:// is not installed.",
                received=printable(str(error)),
                hint="Install what fsspec uses for it: s3fs for s3, gcsfs for gs, "
                "adlfs for az.",
            ) from None
        except Exception as error:  # without credentials, whatever a driver raises
            if "Protocol not known" not in str(error):
                raise self._failure(error) from None
            raise NotSupportedError(
                f"fsspec has no driver for {protocol}://.",
                received=str(self.address),
                hint="Use a path on a local disk, or an address that begins with "
                "s3://, gs:// or az://.",
            ) from None
        if hasattr(fs, "retries"):
            fs.retries = 1  # of s3fs, around those of its library
        return fs, root.rstrip("/")

    @property
    def _fs(self) -> "fsspec.AbstractFileSystem":
        return self._opened[0]

    @property
    def _can_create(self) -> bool:
        """Whether the driver takes ``mode="create"`` (in adlfs, any option)."""
        if not self._fs.async_impl:
            return False
        taken = inspect.signature(self._fs.pipe_file).parameters
        return "mode" in taken or "overwrite" in taken

    def _within(self, nbytes: int = 0) -> dict[str, float]:
        """Arguments of a request that say how long it may take, in seconds.

        Drivers may limit some answers, but wait for others forever.
        """
        return {"timeout": _ANSWER + nbytes / _SLOWEST} if self._fs.async_impl else {}

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def _tried(self, request: Callable[[], T], missing: str = "", local: str = "") -> T:
        """Make a request until it succeeds or ``patience`` is over.

        Args:
            request: Makes it.
            missing: The name for a FileNotFoundError, where that is an answer.
            local: The file that it writes, whose disk may be full.
        """
        import stamina

        def is_worthwhile(error: Exception) -> bool:
            transient = isinstance(error, StoreError) and error.transient
            return transient and not self.abandoned.is_set()

        for attempt in stamina.retry_context(
            on=is_worthwhile,
            attempts=None,
            timeout=self.upload.patience,
            wait_initial=0.2,
            wait_max=10.0,
        ):
            with attempt:
                if self.abandoned.is_set():
                    raise StoreError("the run has ended", transient=False)
                try:
                    return request()
                except Exception as error:  # drivers have families of their own
                    number = getattr(error, "errno", None)
                    failure: Exception = self._failure(error)
                    if missing and isinstance(error, FileNotFoundError):
                        failure = FileNotFoundError(missing)
                    elif local and number in (errno.ENOSPC, errno.EDQUOT):
                        failure = OSError(number, os.strerror(number), local)
                raise failure  # with no reference to the driver's own error
        raise AssertionError("stamina returns a result or raises")

    def _failure(self, error: BaseException) -> StoreError:
        """Describe a driver's error, without credentials."""
        name = type(error).__name__
        late = "no answer in time" if isinstance(error, TimeoutError) else ""
        text = " ".join(f"{name}: {str(error) or late}".split()).rstrip(":.")
        for secret in self._secrets:
            text = text.replace(secret, LEFT_OUT)
        lasting = isinstance(error, _NOT_TRANSIENT) or "Credential" in name
        text = printable(redacted(text)[:_LONGEST])
        return StoreError(text, transient=not lasting)


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Only the upload's one warning reports an unavailable store, not every request."""
    return not str(getattr(record, "stamina.caused_by", "")).startswith(_OURS)


def _secrets(values: Mapping[str, Any]) -> set[str]:
    """Values that must not be shown: all long texts in options, secrets of others."""
    found = set[str]()
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _secrets(value)
        elif isinstance(value, str) and len(value) >= 8 and names_secret(name):
            found.add(value)
    return found
