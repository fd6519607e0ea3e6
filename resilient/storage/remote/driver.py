"""Opens fsspec's driver for an address."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resilient.errors import BackendNotAvailableError, NotSupportedError, printable
from resilient.storage.remote.address import Address

if TYPE_CHECKING:
    import fsspec

OURS = "keras-resilient"  # prefix of errors of requests that we retry

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


def opened(
    address: Address, options: Mapping[str, Any]
) -> "tuple[fsspec.AbstractFileSystem, str]":
    """The driver, and the path of an address in it.

    Args:
        address: Of the run.
        options: The user's options for the driver.

    Raises:
        BackendNotAvailableError: It is not installed.
        NotSupportedError: There is none.
        Exception: Whatever the driver raises, which may show credentials.
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
    protocol = address.protocol
    defaults = _DEFAULTS.get(_ALIASES.get(protocol, protocol), {})
    try:
        fs, root = fsspec.core.url_to_fs(
            str(address),
            use_listings_cache=False,
            skip_instance_cache=True,
            **{**defaults, **options},
        )
    except ImportError as error:
        raise BackendNotAvailableError(
            f"The driver of {protocol}:// is not installed.",
            received=printable(str(error)),
            hint="Install what fsspec uses for it: s3fs for s3, gcsfs for gs, "
            "adlfs for az.",
        ) from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise NotSupportedError(
            f"fsspec has no driver for {protocol}://.",
            received=str(address),
            hint="Use a path on a local disk, or an address that begins with s3://, "
            "gs:// or az://.",
        ) from None
    if hasattr(fs, "retries"):
        fs.retries = 1  # of s3fs, around those of its library
    return fs, root.rstrip("/")


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Only the upload's one warning reports an unavailable store, not every request."""
    return not str(getattr(record, "stamina.caused_by", "")).startswith(OURS)
