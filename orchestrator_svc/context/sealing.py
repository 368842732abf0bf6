"""Sealing: what a client keeps for us and must neither read nor change, such as a summary or plain reasoning. Pure.

AES-SIV is authenticated and needs no random numbers, so that the same content is the same blob. Each owner has a key of its own, derived
from the secrets of the configuration: the first seals, all of them open.
"""

import base64
import binascii
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PREFIX = "tk1."
_KEY_BYTES = 64


class Seals:
    """Seals and opens with the secrets of one deployment."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = tuple(secret.encode() for secret in secrets)

    def seal(self, owner: str, kind: str, content: bytes) -> str:
        """The content as a blob that only `open` with the same owner and kind gives back."""
        sealed = _cipher(self._secrets[0], owner).encrypt(content, [kind.encode()]) if content else b""
        return _written(sealed)

    def open(self, owner: str, kind: str, blob: str) -> bytes | None:
        """The content, or None for a blob that was not sealed here for this owner, or has been changed."""
        try:
            sealed = base64.b64decode(blob[len(PREFIX) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if blob != _written(sealed):
            return None
        return next(filter(None, (_opened(secret, owner, kind, sealed) for secret in self._secrets)), None)


def is_sealed(blob: object) -> bool:
    """Whether a blob claims to be one of ours."""
    return isinstance(blob, str) and blob.startswith(PREFIX)


def _written(sealed: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(sealed).decode()


def _opened(secret: bytes, owner: str, kind: str, sealed: bytes) -> bytes | None:
    try:
        return _cipher(secret, owner).decrypt(sealed, [kind.encode()])
    except (InvalidTag, ValueError):
        return None


@lru_cache(maxsize=1024)
def _cipher(secret: bytes, owner: str) -> AESSIV:
    return AESSIV(HKDF(SHA256(), _KEY_BYTES, salt=None, info=owner.encode()).derive(secret))
