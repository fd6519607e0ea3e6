"""Signs checkpoints with a key from the environment, and checks signatures.

If ``RESILIENT_KEY`` is set, the manifest of each new checkpoint has an HMAC-SHA256 and
the SHA-256 of every file, and a checkpoint without them is refused. So nobody without
the key can write or change a checkpoint that will be used.

It does not prove that a checkpoint is the newest. Anyone who can write to the directory
can delete checkpoints, and put back older ones, or ones from another run signed with
the same key, under the name of their own step. Files beside the checkpoints
(``rollbacks.json``, events, requests) are not signed.
"""

import enum
import hashlib
import hmac
import os

from resilient.errors import message

VARIABLE = "RESILIENT_KEY"

_LEAST = 16  # characters
# Each purpose has its own derived key.
_MANIFEST = b"keras-resilient manifest v1"
_PROCESS = b"keras-resilient process v1"


class Signature(enum.StrEnum):
    """Whose signature a manifest has, in words."""

    OURS = f"signed with the key in {VARIABLE}"
    OTHER = f"signed, but not with the key in {VARIABLE}"
    UNCHECKED = "signed, but there is no key here to check it with"
    NONE = "not signed: anyone who can write here could have written it"


def has_key() -> bool:
    """Whether checkpoints are signed here.

    Raises:
        ValueError: The key is too short.
    """
    return _key(_MANIFEST) is not None


def sign(content: bytes) -> str | None:
    """The HMAC of a manifest; None without a key."""
    return _hmac(_MANIFEST, content)


def shown(challenge: str) -> str | None:
    """Proof for another process of having the same key; None without a key."""
    return _hmac(_PROCESS, challenge.encode())


def whose(signature: str | None, content: bytes) -> Signature:
    """Whose signature it is, in words.

    Args:
        signature: The manifest's signature in hexadecimal, or None.
        content: The signed content.
    """
    if signature is None:
        return Signature.NONE
    ours = sign(content)
    if ours is None:
        return Signature.UNCHECKED
    same = hmac.compare_digest(ours, signature)
    return Signature.OURS if same else Signature.OTHER


def _hmac(purpose: bytes, content: bytes) -> str | None:
    key = _key(purpose)
    return None if key is None else hmac.new(key, content, hashlib.sha256).hexdigest()


def _key(purpose: bytes) -> bytes | None:
    given = os.environ.get(VARIABLE)
    if given is None:
        return None
    if len(given) < _LEAST:  # also if an expected secret is empty
        raise ValueError(
            message(
                f"{VARIABLE} is too short to be a key.",
                received=f"{len(given)} characters",
                hint=f"Use {_LEAST} characters or more, such as `openssl rand -hex "
                "32` prints; or unset it, and checkpoints are not signed.",
            )
        )
    return hmac.new(os.fsencode(given), purpose, hashlib.sha256).digest()
