"""``fits.json`` of a program whose fits are kept in an object store.

It is written before a fit begins, so that on a machine whose disk is new each call
finds its own checkpoints.
"""

import logging
from pathlib import Path

from resilient.errors import CheckpointMismatchError
from resilient.storage.files import JSON_BYTES, replace_text
from resilient.storage.refusals import unreachable
from resilient.storage.remote import claims
from resilient.storage.remote.address import Address
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.options import Upload, checked_upload
from resilient.training.enabled.fits_file import FITS

logger = logging.getLogger(__name__)

_UNSENT = "fits.json.not-uploaded"


class FarJournal:
    """The file in the store.

    Args:
        address: Of the program's fits.
        upload: How to reach the store.
    """

    def __init__(self, address: Address, upload: Upload | None) -> None:
        self.address = address
        self._objects = Objects(address, checked_upload(upload))
        self._warned = False

    def fetch(self, directory: Path) -> None:
        """Make the local file what it is in the store.

        Raises:
            CheckpointReadError: The store does not answer, and there is no local file.
        """
        if (directory / _UNSENT).exists():  # the local one is ahead
            self.put((directory / FITS).read_text(), directory)
            return
        try:
            text = self._objects.get(FITS, JSON_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return
        except StoreError as error:
            if (directory / FITS).exists():
                self._warn(error)
                return
            raise unreachable(f"{self.address}/{FITS}", error) from None
        replace_text(directory / FITS, text)

    def put(self, text: str, directory: Path) -> None:
        """Write the file; where that fails, a warning says so, and it is kept."""
        (directory / _UNSENT).touch()
        try:
            self._objects.put(FITS, text.encode())
        except StoreError as error:
            self._warn(error)
        else:
            (directory / _UNSENT).unlink()

    def require_unused(self, name: str) -> None:
        """Raise where a new call would take over what is another one's.

        Raises:
            CheckpointMismatchError: There are checkpoints under this name.
            CheckpointReadError: The store does not say.
        """
        try:
            self._objects.get(f"{name}/{claims.NAME}", claims.LIMIT)
        except FileNotFoundError:
            return
        except StoreError as error:
            raise unreachable(f"{self.address}/{name}", error) from None
        raise CheckpointMismatchError(
            "A call of fit is new, and the object store has checkpoints under its "
            "name: the program was started over with fewer calls before.",
            received=f"{self.address}/{name}",
            hint="Run it on the machine that made that call, if the file fits.json "
            "could not be uploaded there. Otherwise delete them, or use another "
            "directory.",
        )

    def _warn(self, error: StoreError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s cannot be copied from or to the object store: %s", FITS, error
            )
